#!/usr/bin/env python3
"""Make tests/golden/optimizer.safetensors: what PyTorch's optimizers make of some parameters.

    p, g           a parameter's elements, and its gradients of STEPS steps, one behind the other
    RULE_FORM_p    the parameter afterwards, by each of RULES and of PyTorch's three FORMS of it
    RULE_FORM_m    exp_avg, or the momentum
    RULE_FORM_v    exp_avg_sq

Run, from the repository root: python3 tools/make_optimizer_golden.py. Needs torch, numpy and
safetensors. Prints how far the forms lie from the library's bits, those of f32 operations that are
rounded one by one (numpy has these bits too): in units of the last place of the largest sum of sizes that
was added on the way, since sums that nearly vanish keep the errors of their terms.
"""

import math

import numpy
import torch
from safetensors.torch import save_file

STEPS, N = 5, 101
RULES = {
    "adamw": (torch.optim.AdamW, dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    "adamw_near": (torch.optim.AdamW, dict(lr=0.01, betas=(0.3, 0.5), eps=1e-3, weight_decay=0.0)),
    "sgd": (torch.optim.SGD, dict(lr=0.1, weight_decay=0.01)),
    "momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.01)),
    "nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
}
FORMS = {"single": dict(foreach=False), "foreach": dict(foreach=True), "fused": dict(fused=True)}
F = numpy.float32


def ours(rule, options, p, gradients):
    p, m, v = p.numpy().copy(), numpy.zeros(N, F), numpy.zeros(N, F)
    lr, decay = options["lr"], options["weight_decay"] if "weight_decay" in options else 0.0
    for k, g in enumerate((g.numpy() for g in gradients), 1):
        if rule is torch.optim.AdamW:
            b1, b2 = options["betas"]
            p = p * F(1 - lr * decay)
            near = F(1 - b1) < 0.5
            m = (m if near else g) + (g - m) * (F(1 - b1) if near else F(1 - b1) - F(1))
            v = v * F(b2) + g * F(1 - b2) * g
            below = numpy.sqrt(v) / F(math.sqrt(1 - b2**k)) + F(options["eps"])
            p = p + m * F(-(lr / (1 - b1**k))) / below
            continue
        if decay != 0:
            g = g + p * F(decay)
        if "momentum" in options:
            rest = F(1 - options.get("dampening", 0.0))
            m = g if k == 1 else m * F(options["momentum"]) + g * rest
            g = g + m * F(options["momentum"]) if options.get("nesterov") else m
        p = p + g * F(-lr)
    return p, m, v


def units(a, b, largest):
    return float(numpy.max(numpy.abs(a.astype(float) - b) / numpy.spacing(largest.astype(F))))


generator = torch.Generator().manual_seed(11)
start = torch.randn(N, generator=generator)
scale = 10 ** torch.linspace(-6, 2, N)
gradients = [torch.randn(N, generator=generator) * scale for _ in range(STEPS)]
steepest = numpy.max(numpy.abs([g.numpy() for g in gradients]), axis=0)
out = {"p": start, "g": torch.cat(gradients)}
for name, (rule, options) in RULES.items():
    own = ours(rule, options, start, gradients)
    for form, how in FORMS.items():
        p = torch.nn.Parameter(start.clone())
        optimizer = rule([p], **options, **how)
        for g in gradients:
            p.grad = g.clone()
            optimizer.step()
        state = optimizer.state[p]
        first = state.get("exp_avg", state.get("momentum_buffer"))
        found = [p.detach(), first, state.get("exp_avg_sq")]
        size, way = numpy.abs(start.numpy()), 1 if rule is torch.optim.AdamW else 10 * steepest
        terms = [size + options["lr"] * way, STEPS * (steepest + 0.01 * size), steepest**2]
        for letter, value, mine, largest in zip("pmv", found, own, terms):
            if value is not None:
                out[f"{name}_{form}_{letter}"] = value.clone()
                print(f"{name:10} {form:8} {letter} {units(mine, value.numpy(), largest):5.2f}")
save_file(out, "tests/golden/optimizer.safetensors")
