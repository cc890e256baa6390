#!/usr/bin/env python3
"""Make tests/golden/<architecture>/<name>/training.safetensors: 20 steps of PyTorch's optimizers.

Two cases for each of three checkpoints of tools/make_golden.py: "sgd" (torch.optim.SGD, momentum 0.9,
no clipping, so that a gradient of another scale shows) and "adamw" (torch.optim.AdamW, betas 0.9 and
0.95, decay 0.1 on parameters of two and more axes, gradients clipped to a norm of 1 by
torch.nn.utils.clip_grad_norm_). The learning rate is constant; float32, on the CPU, eager attention,
no auxiliary loss of a router; and the same in float64, to know how far off float32 itself is.
tests/golden/README.md says what is in the file.

Data: a row of 20 * 8 * 16 + 1 tokens. Window i is tokens 16 i to 16 i + 15, its targets are those one
further; step k takes windows 8 k to 8 k + 7. Tokens are drawn such that there is something to learn:
small ones are frequent, and one of three is what followed the same token before. Seeds are tried until
float32 stays near float64, as in tools/make_gradient_golden.py.

Run, from the repository root (about two minutes): python3 tools/make_training_golden.py [NAME ...]
Needs torch, transformers, safetensors and numpy, in the versions that tests/golden/README.md names.
"""

import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from make_golden import arguments, load
from make_gradient_golden import Exact, allowed, as_in_files, exact, rms, save, signs

STEPS, BATCH, LENGTH = 20, 8, 16
NAMES = ["llama/uneven", "gemma3/base", "qwen3_moe/base"]  # untied; tied, windows; experts
# Learning rates at which the loss falls and rounding is not blown up.
RATES = {"sgd": {"llama/uneven": 3e-3, "gemma3/base": 3e-3, "qwen3_moe/base": 1e-2},
         "adamw": {"llama/uneven": 1e-3, "gemma3/base": 1e-3, "qwen3_moe/base": 1e-3}}
MOMENTUM, BETAS, EPS, DECAY, CLIP = 0.9, (0.9, 0.95), 1e-8, 0.1, 1.0
WHOLE, CHUNK, LARGE_CHUNK, LARGE = 512, 16, 128, 8192
SEEDS = 20
# Of losses, norms and parameters. AdamW makes steps of lr of gradients that are all rounding.
MAX_ERRORS = {"sgd": (1e-6, 6e-7, 1e-6), "adamw": (1e-6, 2e-6, 1e-3)}


def draw(vocab, seed):
    """STEPS * BATCH * LENGTH + 1 tokens."""
    g = torch.Generator().manual_seed(seed)
    out, followed = [], {}
    for _ in range(STEPS * BATCH * LENGTH + 1):
        place = int(len(vocab) * torch.rand((), generator=g).item() ** 3)
        again = torch.rand((), generator=g).item() < 1 / 3
        token = followed.get(out[-1], int(vocab[place])) if out and again else int(vocab[place])
        if out:
            followed.setdefault(out[-1], token)
        out.append(token)
    return torch.tensor(out)


def batch(tokens, step):
    """ids and targets [BATCH, LENGTH] of a step."""
    first = step * BATCH * LENGTH
    rows = tokens[first:first + BATCH * LENGTH + 1]
    return rows[:-1].view(BATCH, LENGTH), rows[1:].view(BATCH, LENGTH)


def mean_loss(model, ids, targets):
    if model.dtype == torch.float64:
        with Exact():
            logits = model(ids, use_cache=False).logits
        assert logits.dtype == torch.float64
    else:
        logits = model(ids, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer_of(model, case, rate):
    ps = [p for p in model.parameters()]
    if case == "sgd":
        return torch.optim.SGD(ps, lr=rate, momentum=MOMENTUM, foreach=False)
    return torch.optim.AdamW(
        [{"params": [p for p in ps if p.dim() > 1], "weight_decay": DECAY},
         {"params": [p for p in ps if p.dim() < 2], "weight_decay": 0.0}],
        lr=rate, betas=BETAS, eps=EPS, foreach=False)


def train(model, case, rate, tokens):
    """Losses and norms before clipping, of each step; the parameters are the model's afterwards."""
    optimizer, losses, norms = optimizer_of(model, case, rate), [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(model, *batch(tokens, step))
        loss.backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        square = sum(p.grad.double().pow(2).sum() for p in model.parameters())
        if case == "adamw":
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
        norms.append(square.sqrt().item())
    return np.array(losses), np.array(norms)


def parameters(model, folder):
    """In float64, named and shaped as in the checkpoint's files."""
    return as_in_files({n: p.detach().double() for n, p in model.named_parameters()}, folder)


def chunk_of(shape):
    n = int(np.prod(shape))
    return 1 if n <= WHOLE else LARGE_CHUNK if n > LARGE else CHUNK


def sums(p, size):
    """What is stored of a parameter: itself, or a signed sum for each `size` of its elements."""
    flat = p.numpy().ravel()
    if size == 1:
        return flat
    padded = np.zeros(-(-flat.size // size) * size)
    padded[:flat.size] = flat * signs(flat.size)
    return padded.reshape(-1, size).sum(axis=1)


def off(a, b):
    return np.abs(a / b - 1).max()


def run_case(folder, case, rate, tokens):
    """The case's tensors and the order of the parameters; how far float32 is off: losses, norms,
    parameters."""
    model, other = load(folder, torch.float32), exact(folder)
    begun = parameters(model, folder)
    losses, norms = train(model, case, rate, tokens)
    losses64, norms64 = train(other, case, rate, tokens)
    f32, f64 = parameters(model, folder), parameters(other, folder)
    order = sorted(f32)
    facts = [(f32[n].abs().max().item(), rms(f32[n]), (f32[n] - f64[n]).abs().max().item(),
              rms(f32[n] - begun[n]), (f32[n] - begun[n]).abs().max().item()) for n in order]
    values = np.concatenate([sums(f32[n], chunk_of(f32[n].shape)) for n in order])
    facts = np.array(facts)
    errors = off(losses, losses64), off(norms, norms64), (facts[:, 2] / facts[:, 0]).max()
    return {"loss": np.stack([losses, losses64]), "norm": np.stack([norms, norms64]),
            "rate": np.array([rate]), "facts": facts,
            "values": values.astype(np.float32)}, {n: tuple(f32[n].shape) for n in order}, errors


def make(name, root):
    folder = os.path.join(root, name)
    vocab = allowed(name, load(folder, torch.float32).get_input_embeddings().padding_idx)
    for seed in range(1, SEEDS + 1):
        tokens, found = draw(vocab, seed), {}
        for case in RATES:
            found[case] = run_case(folder, case, RATES[case][name], tokens)
            losses, norms, errors = *(found[case][0][k][0] for k in ("loss", "norm")), found[case][2]
            print(f"{name} seed {seed} {case}: loss {losses[0]:.4f} to {losses[-1]:.4f}, norm "
                  f"{norms[0]:.3g} to {norms[-1]:.3g}; off by "
                  + " ".join(f"{e:.1e}" for e in errors), file=sys.stderr)
            if any(e > most for e, most in zip(errors, MAX_ERRORS[case])):
                break
        else:
            break
    else:
        sys.exit(f"{name}: float32 is too far from float64")
    shapes = found["sgd"][1]
    tensors = {f"{case}.{key}": value for case in found for key, value in found[case][0].items()}
    tensors["tokens"] = tokens.numpy().astype(np.int32)
    tensors["batch"] = np.array([STEPS, BATCH, LENGTH], dtype=np.int64)
    size = save(os.path.join(folder, "training.safetensors"), tensors, shapes,
                [chunk_of(s) for s in shapes.values()])
    said = []
    for case in RATES:
        (losses, _), errors = found[case][0]["loss"], found[case][2]
        said += [f"{RATES[case][name]:.0e}", f"{losses[0]:.4f}", f"{losses[-1]:.4f}",
                 *(f"{e:.1e}" for e in errors)]
    print(f"| {name} | {' | '.join(said)} | {size // 1000} |", flush=True)


def main():
    args = arguments(__doc__, NAMES)
    for name in args.names or NAMES:
        make(name, args.out)


if __name__ == "__main__":
    main()
