#!/usr/bin/env python3
"""Make tests/golden/<architecture>/<name>/gradients.safetensors: Transformers' loss and gradients.

For each checkpoint of tools/make_golden.py, a forward and a backward pass of two cases, "short" (9
tokens) and "long" (2 rows of 33), each in float32, in bfloat16, and in float64 to know how far off
float32 itself is; attn_implementation="eager", on the CPU, eval(), so no dropout, and no auxiliary
loss of a router. tests/golden/README.md says what is in the file.

Gradients have the names and shapes of the checkpoint's own files: a tied head has none, what
Transformers packs or renames while it loads is put back. Parameters that tokens do not reach (a
multimodal checkpoint's vision) are left out; experts that no token chose have a gradient of zeros.

The gradient is that of float64. Those of these small models with their large random weights are
ill-conditioned: on most tokens float32 is off by 1e-5 of max |gradient|, which is what ours may be off
by, more or less as the order of its additions has it. So there are tokens on which it is not, in any of
four orders: Transformers' own, and three with the terms of products permuted. How far float32 is off
is measured as ours is, and of all parameters and orders the worst counts. Of 100 random draws (a quarter
of the tokens seen before in their row) the best is taken, then one token after the other is tried in
it, until it is 1.1e-5. Tokens of a file that is there stay if they are such. Nothing is computed in
float32 on the way of float64, where Transformers would (norms, softmax, rotations). In a mixture of
experts each token must choose its experts by more than 0.05 of the rms of the router's logits, and
choose the same in bfloat16; where a token takes less than half of them, "short" leaves some expert out.

Run, from the repository root (about two minutes, an hour without the files): python3 tools/make_gradient_golden.py [NAME ...]
Needs torch, transformers, safetensors and numpy, in the versions that tests/golden/README.md names.
"""

import contextlib
import glob
import os
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from make_golden import FIXTURES, arguments, forward, load
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode

CASES = {"short": (1, 9), "long": (2, 33)}  # rows, tokens
IGNORED = -100
WHOLE = 512  # parameters of up to so many elements are stored whole, larger ones in chunks
CHUNK, LONG_CHUNK, LARGE = 16, 32, 8192  # of so many elements, longer above LARGE
MAX_AXES = 4
SEEDS, STEPS, BOUND, MIN_GAP, ORDERS = 100, 4000, 1.1e-5, 0.05, 4


class Exact(TorchFunctionMode):
    """Where a model asks for float32 (norms, softmax, rotations) it gets float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        out = func(*args, **kwargs)
        for x in out if isinstance(out, (tuple, list)) else (out,):
            assert not (isinstance(x, torch.Tensor) and x.requires_grad and
                        x.dtype == torch.float32), func
        return out


class Permuted(TorchFunctionMode):
    """Products of layers add up their terms in another order, on the way back, too."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        x, w, bias = (*args, *(kwargs or {}).values(), None)[:3]
        rows = x.reshape(-1, x.shape[-1])
        m, o, i = (torch.randperm(n, generator=self.generator) for n in (len(rows), *w.shape))
        y = F.linear(rows[m][:, i], w[o][:, i], None if bias is None else bias[o])
        return y[m.argsort()][:, o.argsort()].reshape(*x.shape[:-1], len(w))


def exact(folder):
    """The checkpoint in float64; its rotations from the frequencies that float32 has."""
    model = load(folder, torch.float64)
    single = dict(load(folder, torch.float32).named_buffers())
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.data = single[name].double()
    return model


def allowed(name, padding):
    """Tokens to draw from: PyTorch keeps the gradient from the padding token's row of an embedding,
    and the last tokens of a multimodal vocabulary stand for images."""
    ids = range(FIXTURES[name][1]["vocab_size"] - (3 if name == "gemma3/multimodal" else 0))
    return torch.tensor([i for i in ids if i != padding])


def draw(models, vocab, rows, length, generator):
    """Tokens [rows, length], a quarter of them seen before, whose experts are clearly chosen."""
    out = torch.empty(rows, length, dtype=torch.int64)
    for r in range(rows):
        for t in range(length):
            tries = vocab[torch.randperm(len(vocab), generator=generator)]
            if t > 2 and torch.rand((), generator=generator) < 0.25:
                tries = torch.cat([out[r, torch.randint(t, (1,), generator=generator)], tries])
            for token in tries:
                out[r, t] = token
                if is_clear(models, out[r, :t + 1]):
                    break
            else:
                return None
    return out


def is_routed(model):
    return any(type(m).__name__.lower().endswith("topkrouter") for m in model.modules())


@torch.no_grad()
def is_clear(models, tokens):
    """Whether each of a row's tokens chooses its experts by MIN_GAP, and the same in bfloat16."""
    if not is_routed(models[0]):
        return True
    said, halves = (forward(m, tokens)[1] for m in models[:2])
    for (logits, chosen), (_, others) in zip(said, halves):
        k = chosen.shape[1]
        best = logits.sort(descending=True).values
        gap = (best[:, k - 1] - best[:, k]).min() / logits.pow(2).mean().sqrt()
        if gap < MIN_GAP or not torch.equal(chosen.sort().values, others.sort().values):
            return False
    return True


@torch.no_grad()
def leaves_out(model, tokens):
    """Whether no token chooses some expert of some layer, where that can be had at all."""
    said = forward(model, tokens)[1] if is_routed(model) else []
    experts = [(logits.shape[1], chosen) for logits, chosen in said]
    return any(len(chosen.unique()) < n for n, chosen in experts) or all(
        2 * chosen.shape[1] > n for n, chosen in experts)


def ignored(shape, generator):
    """Which positions have no target: the last, a few others, the beginning of a second row."""
    out = torch.rand(shape, generator=generator) < 0.1
    out[:, -1] = True
    out[0, shape[1] // 3] = True
    out[1:, :shape[1] // 4] = True  # as a prompt that is not learned
    assert not out.all(dim=1).any()
    return out


def shifted(tokens, without):
    """Targets [rows, length]: the next token, or IGNORED."""
    return tokens.roll(-1, dims=1).masked_fill(without, IGNORED)


def loss_of(model, tokens, targets):
    """Transformers' own loss; in float64, where it would round logits to float32, the same formula."""
    if model.dtype == torch.float64:
        with Exact():
            logits = model(tokens, use_cache=False).logits
        assert logits.dtype == torch.float64
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    labels = torch.full_like(tokens, IGNORED)
    labels[:, 1:] = targets[:, :-1]  # Transformers shifts them itself
    return model(tokens, labels=labels, use_cache=False).loss


def names_and_shapes(folder):
    """Of the checkpoint's files."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        with safe_open(path, "pt") as f:
            found.update({k: tuple(f.get_slice(k).get_shape()) for k in f.keys()})
    return found


def gradients(model, tokens, targets):
    """(loss, {name of the parameter: gradient in float64}) of one pass."""
    model.zero_grad()
    loss = loss_of(model, tokens, targets)
    loss.backward()
    missing = {n for n, p in model.named_parameters() if p.grad is None}
    assert all(map(is_left_out, missing)), missing
    return loss.item(), {n: p.grad.double() for n, p in model.named_parameters()
                         if p.grad is not None}


def is_left_out(name):
    """What no token reaches, and what corrects a router's choices, which is no parameter."""
    return any(word in name for word in ("vision", "multi_modal", "e_score_correction_bias"))


def as_in_files(grads, folder):
    """The same under the names, and in the shapes, of the checkpoint's files."""
    there = {n: s for n, s in names_and_shapes(folder).items() if not is_left_out(n)}
    if not set(grads) <= set(there):  # saved like weights, they are named like weights
        carrier = load(folder, torch.float64)
        with torch.no_grad():
            for name, p in carrier.named_parameters():
                p.copy_(grads.get(name, torch.zeros_like(p)))
        with tempfile.TemporaryDirectory() as saved:
            carrier.save_pretrained(saved)
            grads = load_file(os.path.join(saved, "model.safetensors"))
        grads = {n: g for n, g in grads.items() if not is_left_out(n)}
    assert {n: tuple(g.shape) for n, g in grads.items()} == there
    assert all(g.dtype == torch.float64 and torch.isfinite(g).all() for g in grads.values())
    return grads


def signs(n):
    """+1 or -1 for elements 0 to n - 1; tests/golden/README.md states the same in C."""
    h = np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.where((h ^ (h >> np.uint64(32))) & np.uint64(1), -1.0, 1.0)


def chunks(g, size):
    """What is stored of a gradient: itself, or a signed sum for each `size` of its elements."""
    flat = g.numpy().astype(np.float64).ravel()
    if size == 1:
        return flat
    padded = np.zeros(-(-flat.size // size) * size)
    padded[:flat.size] = flat * signs(flat.size)
    return padded.reshape(-1, size).sum(axis=1)


def chunk_sizes(shapes):
    """1 for small parameters and for the smallest of those that are not."""
    large = {n: int(np.prod(s)) for n, s in shapes.items() if np.prod(s) > WHOLE}
    first = min(large, key=lambda n: (large[n], n)) if large else None
    return {n: 1 if n not in large or n == first else LONG_CHUNK if large[n] > LARGE else CHUNK
            for n in shapes}


def rms(x):
    return x.pow(2).mean().sqrt().item()


def distance(a, b, size):
    """As ours is measured: the largest of what is stored of b - a over max |a|; 0 for two zeros."""
    return np.abs(chunks(b - a, size)).max() / max(a.abs().max().item(), 1e-30)


def off_by(models, tokens, targets, enough):
    """How far float32 is from float64, of the order and the parameter where it is farthest; orders
    are left out once that is `enough`."""
    _, f64 = gradients(models[2], tokens, targets)
    sizes = chunk_sizes({n: g.shape for n, g in f64.items()})
    worst = 0.0
    for order in range(ORDERS):
        with Permuted(order) if order > 0 else contextlib.nullcontext():
            _, f32 = gradients(models[0], tokens, targets)
        worst = max(worst, *(distance(f64[n], f32[n], sizes[n]) for n in f64))
        if worst >= enough:
            break
    return worst


def choose(models, vocab, shape):
    """Tokens and targets on which float32 does well in every order: the best of some seeds, then other
    tokens in it one by one where that is better."""
    best = float("inf"), None, None
    for seed in range(1, SEEDS + 1):
        generator = torch.Generator().manual_seed(seed)
        tokens = draw(models, vocab, *shape, generator) if best[0] > BOUND else None
        if tokens is None or (shape[0] == 1 and not leaves_out(models[0], tokens[0])):
            continue
        without = ignored(shape, generator)
        off = off_by(models, tokens, shifted(tokens, without), best[0])
        best = min(best, (off, tokens, without), key=lambda x: x[0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        if best[0] <= BOUND:
            break
        off, tokens, without = best
        row, place, at = (torch.randint(n, (), generator=generator) for n in (*shape, len(vocab)))
        other = tokens.index_put((row, place), vocab[at])
        if is_clear(models, other[row]) and (shape[0] > 1 or leaves_out(models[0], other[0])):
            found = off_by(models, other, shifted(other, without), off)
            best = min(best, (found, other, without), key=lambda x: x[0])
    assert best[0] <= BOUND, f"float32 is off by {best[0]:.1e} at best"
    return best[1], shifted(best[1], best[2])


def stored(path, case):
    """Tokens and targets of the file as it is; None where there is none."""
    if not os.path.exists(path):
        return None
    tensors = load_file(path)
    return tensors[f"{case}.tokens"], tensors[f"{case}.targets"]


def run_case(models, folder, tokens, targets):
    """The tensors of a case, and the shapes of its parameters in their order."""
    losses, found = zip(*(gradients(m, tokens, targets) for m in models))
    assert abs(losses[0] - losses[2]) <= 1e-6 * losses[2]
    f32, bf16, f64 = (as_in_files(g, folder) for g in found)
    order = sorted(f32)
    shapes = {n: tuple(f32[n].shape) for n in order}
    sizes = chunk_sizes(shapes)
    facts = [(f64[n].abs().max().item(), rms(f64[n]), (f32[n] - f64[n]).abs().max().item(),
              rms(bf16[n] - f64[n]), (bf16[n] - f64[n]).abs().max().item()) for n in order]
    values = np.concatenate([chunks(f64[n], sizes[n]) for n in order]).astype(np.float32)
    return {"tokens": tokens.numpy(), "targets": targets.numpy(), "loss": np.array(losses),
            "facts": np.array(facts), "values": values}, shapes


def save(path, tensors, shapes, chunks):
    """Write what is stored of parameters; its bytes."""
    tensors["names"] = np.frombuffer("\n".join(shapes).encode(), dtype=np.uint8)
    tensors["shapes"] = np.array([s + (0,) * (MAX_AXES - len(s)) for s in shapes.values()],
                                 dtype=np.int64)
    tensors["chunk"] = np.array(list(chunks), dtype=np.int64)
    save_file(tensors, path)
    os.chmod(path, 0o644)
    return os.path.getsize(path)


def make(name, root):
    """Write a fixture, and give the line for the README."""
    folder = os.path.join(root, name)
    path = os.path.join(folder, "gradients.safetensors")
    models = load(folder, torch.float32), load(folder, torch.bfloat16), exact(folder)
    vocab = allowed(name, models[0].get_input_embeddings().padding_idx)
    tensors, said, start = {}, [], time.time()
    for case in CASES:
        text = stored(path, case)
        if text is None or off_by(models, *text, 2 * BOUND) > BOUND:
            text = choose(models, vocab, CASES[case])
        parts, shapes = run_case(models, folder, *text)
        tensors.update({f"{case}.{key}": value for key, value in parts.items()})
        facts = parts["facts"]
        zeros = [n for n, fact in zip(shapes, facts) if fact[0] == 0]
        print(f"{name} {case}: {time.time() - start:.0f} s; zeros: {zeros}", file=sys.stderr)
        facts = facts[facts[:, 0] > 0]
        said += [f"{parts['loss'][0]:.4f}", f"{(facts[:, 2] / facts[:, 0]).max():.1e}",
                 f"{np.median(facts[:, 3] / facts[:, 1]):.1e}",
                 f"{(facts[:, 3] / facts[:, 1]).max():.1e}"]
    size = save(path, tensors, shapes, chunk_sizes(shapes).values())
    line = f"| {name} | {len(shapes)} | {' | '.join(said)} | {size // 1000} |"
    print(line, flush=True)
    return line


def main():
    args = arguments(__doc__, FIXTURES)
    for name in args.names or FIXTURES:
        make(name, args.out)


if __name__ == "__main__":
    main()
