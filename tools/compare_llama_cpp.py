#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dtensor bench and llama.cpp by turns in one run: the same shapes, random weights, as many threads.

The shapes are those of Llama-3.2-1B with a head of its own, so that both may pack it. For llama.cpp
they are written as GGUF in bf16 and quantized by its llama-quantize; for dtensor a config.json is
enough. Each way is started anew, one after the other, in every round:

    decoding at once  N sequences, 8 tokens before them: llama-batched-bench, bench --batch
    a prompt          in one pass:                       llama-bench -p,     bench --sequence
    decoding behind   N tokens, one sequence:            llama-bench -d,     bench --behind

    tools/compare_llama_cpp.py --llama BUILD/bin [--gguf-py SOURCE/gguf-py] --dtensor BUILD/bin/dtensor
        [--pair bf16 --pair int8 ...] [--mesh tp=1 ...] [--threads 2] [--rounds 1] [--json]
        [--batch 1,2,4,8,16,24,31,64] [--prompt 512,4096] [--behind 4096,16384] [--folder DIR]
        [--before "chrt -f 50"]

Prints tables of tokens per second and of ours over theirs, medians of the rounds; with --json one object
instead. What cannot be run is a row with an "error". Files stay in --folder if it is given; they need
up to 8 GB. Needs a build of llama.cpp (llama-bench, llama-batched-bench, llama-quantize), numpy, and its
Python package gguf, installed or by --gguf-py.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}
# name: what llama-quantize makes, with its options (None: the file in bf16), what dtensor is told
PAIRS = {
    "bf16": (None, []),
    "int8": (["Q8_0"], ["--weights", "int8,group=32,head"]),
    "int4": (["--pure", "Q4_0"], ["--weights", "int4,group=32,head"]),
    "int4_k": (["Q4_K_M"], ["--weights", "int4,group=32,asymmetric,head"]),
}
BEFORE, NEW = 8, 16  # tokens before batches; tokens that are generated
CELLS = 256  # of a sequence's cache: llama.cpp rounds to multiples of it


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def random_bf16():
    """Bits of 2^24 normal numbers, which fill all matrices: the time does not depend on them."""
    import numpy as np

    floats = np.random.default_rng(0).standard_normal(1 << 24, dtype=np.float32) * np.float32(0.02)
    return (floats.view(np.uint32) >> 16).astype(np.uint16)


def write_gguf(path, words=None):
    """With `words` the ids have these texts, else none: a server needs them."""
    import gguf
    import numpy as np

    c, bf16, pool = CONFIG, gguf.GGMLQuantizationType.BF16, random_bf16()
    hidden, ff, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(ff)
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_tokenizer_model("gpt2" if words else "no_vocab")
    if words:
        w.add_token_list(words)
        w.add_token_types([gguf.TokenType.NORMAL] * len(words))
        w.add_token_merges([f"{words[0]} {words[1]}"])
        w.add_eos_token_id(len(words) - 1)

    def matrix(name, rows, columns):
        data = np.resize(pool, (rows, columns)).view(np.uint8)
        w.add_tensor(name + ".weight", data, raw_dtype=bf16)

    def norm(name):
        w.add_tensor(name + ".weight", np.ones(hidden, dtype=np.float32))

    matrix("token_embd", c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        b = f"blk.{i}."
        norm(b + "attn_norm")
        matrix(b + "attn_q", hidden, hidden)
        matrix(b + "attn_k", kv, hidden)
        matrix(b + "attn_v", kv, hidden)
        matrix(b + "attn_output", hidden, hidden)
        norm(b + "ffn_norm")
        matrix(b + "ffn_gate", ff, hidden)
        matrix(b + "ffn_up", ff, hidden)
        matrix(b + "ffn_down", hidden, ff)
    norm("output_norm")
    matrix("output", c["vocab_size"], hidden)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Comparison:
    def __init__(self, options, folder):
        self.options, self.folder, self.rows = options, folder, {}

    def run(self, command):
        command = [*shlex.split(self.options.before), *command]
        print("+", " ".join(command), file=sys.stderr, flush=True)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def make(self, pair):
        """The file of a pair for llama.cpp."""
        plain = os.path.join(self.folder, "bf16.gguf")
        path = os.path.join(self.folder, pair + ".gguf")
        if not os.path.exists(plain):
            write_gguf(plain + ".part")
            os.rename(plain + ".part", plain)
        if not os.path.exists(path):
            *flags, kind = PAIRS[pair][0]
            quantize = os.path.join(self.options.llama, "llama-quantize")
            subprocess.run([quantize, *flags, plain, path + ".part", kind,
                            str(self.options.threads)], check=True, capture_output=True)
            os.rename(path + ".part", path)
        return path

    def add(self, pair, what, n, who, measure):
        """Appends tokens per second; `measure` gives one number, or one for each of a list."""
        try:
            found = measure()
        except (OSError, subprocess.SubprocessError, ValueError, LookupError) as e:
            said = (getattr(e, "stderr", None) or "").strip().splitlines()[-1:]
            found = " ".join([f"{type(e).__name__}: {e}"[:200], *said])
            print(found, file=sys.stderr)
        for i, each in enumerate(n):
            row = self.rows.setdefault((pair, what, each), {})
            if isinstance(found, str):
                row.setdefault("error", {})[who] = found
            else:
                row.setdefault(who, []).append(found[i])
                print(f"{pair} {what} {each} {who}: {found[i]:.1f} tokens/s", file=sys.stderr)

    # --- theirs ---

    def their_batches(self, path, batches):
        context = max(batches) * CELLS
        t = str(self.options.threads)
        out = self.run([os.path.join(self.options.llama, "llama-batched-bench"), "-m", path, "-c",
                        str(context), "-npp", str(BEFORE), "-ntg", str(NEW), "-npl",
                        ",".join(map(str, batches)), "-t", t, "-tb", t, "--output-format", "jsonl"])
        speeds = {row["pl"]: row["speed_tg"] for row in
                  (json.loads(line) for line in out.splitlines() if line.startswith("{"))}
        return [speeds[n] for n in batches]

    def their_bench(self, path, *arguments):
        out = self.run([os.path.join(self.options.llama, "llama-bench"), "-m", path, "-t",
                        str(self.options.threads), "-r", "1", "-o", "json", *arguments])
        return json.loads(out)[0]["avg_ts"]

    # --- ours ---

    def bench(self, pair, mesh, *arguments):
        sizes = [int(part.split("=")[1]) for part in mesh.split(",")]
        ranks = 1
        for size in sizes:
            ranks *= size
        return json.loads(self.run(
            [self.options.dtensor, "bench", "-q", "--random", "--model", self.folder, "--mesh", mesh,
             "--threads", str(max(1, self.options.threads // ranks)), "--dtype", "bf16", "--json",
             "-n", str(NEW), *PAIRS[pair][1], *arguments]))

    def our_batches(self, pair, mesh, batches):
        rows = self.bench(pair, mesh, "--rounds", "1", "--batch", ",".join(map(str, batches)))
        speeds = {row["batch"]: row["tokens_per_s"] for row in rows["batches"]}
        return [speeds[n] for n in batches]

    def our_prompt(self, pair, mesh, n):
        return [self.bench(pair, mesh, "--rounds", "1", "--sequence", str(n))["prompt"]["tokens_per_s"]]

    def our_depth(self, pair, mesh, n):
        found = self.bench(pair, mesh, "--rounds", "3", "--sequence", "8", "--behind", str(n))
        return [found["decode"]["tokens_per_s"]]

    # --- all ---

    def round_of(self, pair):
        o, path = self.options, self.make(pair)
        if o.batch:
            self.add(pair, "batch", o.batch, "llama.cpp", lambda: self.their_batches(path, o.batch))
            for m in o.mesh:
                self.add(pair, "batch", o.batch, m, lambda m=m: self.our_batches(pair, m, o.batch))
        for n in o.prompt:
            self.add(pair, "prompt", [n], "llama.cpp",
                     lambda n=n: [self.their_bench(path, "-p", str(n), "-n", "0")])
            for m in o.mesh:
                self.add(pair, "prompt", [n], m, lambda m=m, n=n: self.our_prompt(pair, m, n))
        for n in o.behind:
            self.add(pair, "behind", [n], "llama.cpp",
                     lambda n=n: [self.their_bench(path, "-p", "0", "-n", str(NEW), "-d", str(n))])
            for m in o.mesh:
                self.add(pair, "behind", [n], m, lambda m=m, n=n: self.our_depth(pair, m, n))

    def result(self):
        rows = []
        for (pair, what, n), found in self.rows.items():
            speeds = {who: statistics.median(found[who]) for who in found if who != "error"}
            theirs = speeds.get("llama.cpp")
            rows.append({"weights": pair, "what": what, "n": n, "tokens_per_s": speeds, "ratio": {
                m: speeds[m] / theirs for m in self.options.mesh if m in speeds and theirs}})
            if "error" in found:
                rows[-1]["error"] = found["error"]
        return rows


def print_tables(rows, meshes):
    names = {"batch": "decoding, sequences at once", "prompt": "a prompt of tokens",
             "behind": "decoding behind tokens"}
    print("| weights | what | n | llama.cpp, tokens/s |", *(f"{m} | ratio |" for m in meshes))
    print("| --- | --- | --- | --- |", *("--- | --- |" for _ in meshes))
    for r in rows:
        speed = r["tokens_per_s"]
        print(f"| {r['weights']} | {names[r['what']]} | {r['n']} |",
              f"{speed['llama.cpp']:.1f} |" if "llama.cpp" in speed else "- |",
              *(f"{speed[m]:.1f} | {r['ratio'].get(m, 0):.2f} |" if m in speed else "- | - |"
                for m in meshes))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--gguf-py", help="its source of the package gguf")
    parser.add_argument("--dtensor", required=True, help="the command")
    parser.add_argument("--pair", action="append", choices=list(PAIRS), help="all by default")
    parser.add_argument("--mesh", action="append", help="tp=1 and one rank per thread by default")
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--batch", type=numbers, default="1,2,4,8,16,24,31,64")
    parser.add_argument("--prompt", type=numbers, default="512,4096")
    parser.add_argument("--behind", type=numbers, default="4096,16384")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--before", default="", help="words before each program: \"chrt -f 50\"")
    parser.add_argument("--folder", help="where files are made and kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.mesh = options.mesh or ["tp=1", f"tp={options.threads}"]
    if options.gguf_py:
        sys.path.insert(0, options.gguf_py)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(CONFIG, f, indent=1)
        comparison = Comparison(options, folder)
        load = os.getloadavg()[0]
        for pair in options.pair or PAIRS:
            for _ in range(options.rounds):
                comparison.round_of(pair)
        rows = comparison.result()
        if options.json:
            print(json.dumps({"bench": "compare_llama_cpp", "threads": options.threads,
                              "load": [load, os.getloadavg()[0]], "rows": rows}, indent=1))
        else:
            print_tables(rows, options.mesh)


if __name__ == "__main__":
    main()
