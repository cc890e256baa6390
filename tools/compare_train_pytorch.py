#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of PyTorch, to stand beside bench_train: forward and backward of 4 x 256 tokens, and
with --adamw the optimizer: gradients clipped to a norm of 1 and fused AdamW, beside ours.

The model of bench_train, a Llama of 26 M parameters (vocabulary 8192, hidden 512, feed-forward 1408,
6 layers, 8 heads, 4 KV heads, nothing tied), by Transformers with PyTorch's own fused attention, in
float32 and with bfloat16 autocast, eager and by torch.compile. Each way is warmed up and then timed
step by step, gradients set to None before each. With --bench-train its figures are taken in the same
run, before and after PyTorch's, because machines change their speed.

    tools/compare_train_pytorch.py [--bench-train build/release/bench/bench_train] [--adamw]
                                   [--threads 2] [--rounds 7] [--output FILE]

Prints one JSON object: facts; "pytorch", rows of {"mode", "dtype", "tokens_per_s", "least", "most",
"loss"}; "ours", what bench_train printed, twice; and "ratios", ours over PyTorch's: the best row that
bench_train has in a dtype ("dtype" and "tokens_per_s" are read of its "rows"), of the slower of its
two runs. What cannot be run is a row with an "error". Needs torch, transformers, and a C++ compiler for
torch.compile.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SHAPE = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}
WAYS = [("eager", "f32"), ("compiled", "f32"), ("eager", "bf16"), ("compiled", "bf16")]
# What ours is compared with, and by how much it is to be faster: (our dtype, its row, target).
TARGETS = [("bf16", ("compiled", "bf16"), 1.2), ("f32", ("eager", "f32"), 2.0)]


def measure(torch, transformers, options, mode, dtype):
    """Tokens per second of one way: median, least and most; and the loss, the same in all ways."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE)
    config._attn_implementation = "sdpa"
    model = transformers.LlamaForCausalLM(config).train()
    ids = torch.randint(SHAPE["vocab_size"], (options.rows, options.length))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
        fused=True) if options.adamw else None

    def loss_of(ids):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            return model(ids, labels=ids, use_cache=False).loss

    def step(forward):
        model.zero_grad(set_to_none=True)
        loss = forward(ids)
        loss.backward()
        if optimizer:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return loss.item()

    forward = torch.compile(loss_of, dynamic=False) if mode == "compiled" else loss_of
    first = step(forward)
    step(forward)
    times = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        step(forward)
        times.append(time.perf_counter() - start)
    n = ids.numel()
    return {"tokens_per_s": n / statistics.median(times), "least": n / max(times),
            "most": n / min(times), "loss": first,
            "parameters": sum(p.numel() for p in model.parameters())}


def run_ours(options):
    """What bench_train prints, or why it does not."""
    command = [options.bench_train, "--json", *(["--adamw"] if options.adamw else []), *options.args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        said = (getattr(e, "stderr", None) or "").strip().splitlines()[-1:]
        return {"error": " ".join([f"{type(e).__name__}: {e}", *said]), "rows": []}


def compare(rows, ours):
    """Ours over PyTorch's where both are there."""
    ratios = []
    for dtype, way, target in TARGETS:
        best = [max((r["tokens_per_s"] for r in run.get("rows", [])
                     if r.get("dtype") == dtype and "tokens_per_s" in r), default=None)
                for run in ours]
        theirs = next((r.get("tokens_per_s") for r in rows if (r["mode"], r["dtype"]) == way), None)
        if theirs and best and None not in best:
            ratios.append({"ours": dtype, "pytorch": " ".join(way), "target": target,
                           "ratio": min(best) / theirs})
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench-train", help="the program; PyTorch alone if it is not given")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--adamw", action="store_true", help="whole steps, AdamW (fused) included")
    parser.add_argument("--output", help="also writes the JSON there")
    parser.add_argument("args", nargs="*", help="after --: more options for bench_train")
    options = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as e:
        sys.exit(f"compare_train_pytorch: {e}; it needs torch and transformers")
    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()[0]
    ours = [run_ours(options)] if options.bench_train else []
    rows = []
    for mode, dtype in WAYS:
        row = {"mode": mode, "dtype": dtype}
        try:
            row.update(measure(torch, transformers, options, mode, dtype))
        except Exception as e:  # no compiler, another version: the other ways are measured anyway
            row["error"] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]
        print(json.dumps(row), file=sys.stderr)
        rows.append(row)
        torch.compiler.reset()
    if options.bench_train:
        ours.append(run_ours(options))
    result = {
        "bench": "compare_train_pytorch", "torch": torch.__version__,
        "transformers": transformers.__version__, "threads": options.threads,
        "rows": options.rows, "length": options.length, "adamw": options.adamw,
        "load": [load_before, os.getloadavg()[0]],  # more than the threads: figures mean little
        "pytorch": rows, "ours": ours, "ratios": compare(rows, ours),
    }
    print(json.dumps(result, indent=1))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
