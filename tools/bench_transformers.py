#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill and greedy decoding by Transformers on a GPU, to stand beside bench_gpu_models.

The same shapes with random weights in bf16, one sequence: a prompt of 2048 tokens, and tokens
behind a context of 1024. Decoding is measured eagerly and compiled (a cache of fixed size, recorded
as a CUDA graph by torch.compile). Prints one JSON object: facts, then "rows" whose "us" is the
median time of a prompt or of a token. What cannot be run is a row with an "error".

    tools/bench_transformers.py [--shape llama-3-8b] [--output FILE] [--device cuda]
"""
import argparse
import json
import statistics
import sys
import time

SHAPES = {
    "llama-3.2-1b": ("llama", 2048, 16, 32, 8, 64, 8192, 128256, True),
    "qwen3-4b": ("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, True),
    "llama-3-8b": ("llama", 4096, 32, 32, 8, 128, 14336, 128256, False),
    "tiny": ("llama", 64, 2, 4, 2, 16, 96, 128, True),
}


def make_model(torch, transformers, name, device):
    kind, hidden, layers, heads, kv_heads, head_dim, ff, vocab, tied = SHAPES[name]
    family = transformers.Qwen3Config if kind == "qwen3" else transformers.LlamaConfig
    config = family(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, intermediate_size=ff, vocab_size=vocab,
        max_position_embeddings=8192, tie_word_embeddings=tied)
    config._attn_implementation = "sdpa"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # what from_config() calls the argument has changed
    try:
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval()


class Bench:
    def __init__(self, torch, transformers, options):
        self.torch, self.transformers, self.options = torch, transformers, options
        self.device = torch.device(options.device)
        self.result = {
            "bench": "transformers",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda" else str(self.device),
            "rows": [],
        }

    def write(self):
        """After every row: what was measured is there even if a later one takes too long."""
        if self.options.output:
            with open(self.options.output, "w", encoding="utf-8") as f:
                json.dump(self.result, f, indent=1)

    def add(self, what, shape, mode, tokens, measure):
        row = {"what": what, "shape": shape, "mode": mode, "tokens": tokens}
        try:
            us, counted = measure()
            row.update(us=us, tokens_per_s=counted * 1e6 / us)
        except Exception as e:  # another version, no memory: the others are measured anyway
            row["error"] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:160]
            row["error"] = row["error"].translate(str.maketrans("{}|\"\t", "()/' "))
        self.result["rows"].append(row)
        print(json.dumps(row), file=sys.stderr)
        self.write()

    def now(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def ids(self, model, n):
        return self.torch.randint(model.config.vocab_size, (1, n), device=self.device)

    def prefill(self, model):
        """Median of a prompt in one pass; logits of the last token alone."""
        ids, times = self.ids(model, self.options.prompt), []
        for _ in range(self.options.rounds + 1):
            start = self.now()
            model(ids, use_cache=True, logits_to_keep=1)
            times.append(self.now() - start)
        return statistics.median(times[1:]) * 1e6, self.options.prompt

    def decode(self, model, compiled):
        """Median of a token, with its choice, behind the context."""
        torch, o = self.torch, self.options
        n_all = o.context + (o.rounds + 3) * o.tokens + 8
        step, times = model, []
        if compiled:
            cache = self.transformers.StaticCache(config=model.config, max_cache_len=n_all)
            step = torch.compile(model, mode="reduce-overhead", fullgraph=True, dynamic=False)
        else:
            cache = self.transformers.DynamicCache()
        ids, at = self.ids(model, o.context), o.context
        positions = torch.arange(o.context, device=self.device)
        logits = self.run(model, ids, cache, positions)
        token = logits[:, -1:].argmax(-1)
        for _ in range(o.rounds + 3):  # the first rounds compile and record
            start = self.now()
            for _ in range(o.tokens):
                if compiled:
                    torch.compiler.cudagraph_mark_step_begin()
                position = torch.tensor([at], device=self.device)
                token = self.run(step, token, cache, position)[:, -1:].argmax(-1).clone()
                at += 1
            times.append((self.now() - start) / o.tokens)
        return statistics.median(times[3:]) * 1e6, 1

    @staticmethod
    def run(step, ids, cache, positions):
        """Versions from 5 on find positions by themselves, and some refuse cache_position."""
        return step(ids, past_key_values=cache, use_cache=True, logits_to_keep=1,
                    position_ids=positions[None], cache_position=positions).logits

    def shape(self, name):
        torch = self.torch
        model = make_model(torch, self.transformers, name, self.device)
        o = self.options
        self.add("prefill", name, "eager", o.prompt, lambda: self.prefill(model))
        self.add("decode", name, "eager", o.context, lambda: self.decode(model, False))
        if not o.no_compile:
            self.add("decode", name, "compiled", o.context, lambda: self.decode(model, True))
            torch.compiler.reset()
        del model
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES),
                        help="may be repeated; all but tiny by default")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=32, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--output", help="also writes the JSON there, after each row")
    options = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as e:
        sys.exit(f"bench_transformers: {e}; it needs torch and transformers")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("bench_transformers: PyTorch sees no GPU")
    bench = Bench(torch, transformers, options)
    with torch.inference_mode():
        for name in options.shape or [s for s in SHAPES if s != "tiny"]:
            bench.shape(name)
    bench.write()
    print(json.dumps(bench.result))


if __name__ == "__main__":
    main()
