#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dtensor serve and llama.cpp's llama-server by turns in one run: the same model, clients and threads.

The model is compare_llama_cpp.py's: the shapes of Llama-3.2-1B, random weights in bf16, for each server
in its own format, and a vocabulary whose texts are "t0 t1 ...". In every round each server is started
anew, with as many slots as the most clients, and `dtensor bench --serve` asks it over HTTP: clients that
ask again when they have their answer, prompts of random ids, greedy answers of a fixed length.

    tools/compare_llama_server.py --llama BUILD/bin [--gguf-py SOURCE/gguf-py] --dtensor BUILD/bin/dtensor
        [--clients 1,4,8,16,32] [--sequence 128] [--new 128] [--per-client 2] [--rounds 1]
        [--mesh tp=2] [--threads 2] [--folder DIR] [--json]

Prints tokens per second, gaps between tokens (median and 99th percentile) and times to the first one,
medians of the rounds, and ours over theirs; with --json one object instead. Files stay in --folder if it
is given; they need 6 GB. Needs what compare_llama_cpp.py needs.
"""
import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

from compare_llama_cpp import CONFIG, numbers, random_bf16, write_gguf

WORDS = [f"t{i}\u0120" for i in range(CONFIG["vocab_size"])]  # \u0120 is a space in byte-level texts


def write_safetensors(path):
    import numpy as np

    c, pool = CONFIG, random_bf16()
    hidden, ff, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    shapes = {"model.embed_tokens": (c["vocab_size"], hidden), "model.norm": (hidden,),
              "lm_head": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        b = f"model.layers.{i}."
        shapes.update({
            b + "input_layernorm": (hidden,), b + "post_attention_layernorm": (hidden,),
            b + "self_attn.q_proj": (hidden, hidden), b + "self_attn.k_proj": (kv, hidden),
            b + "self_attn.v_proj": (kv, hidden), b + "self_attn.o_proj": (hidden, hidden),
            b + "mlp.gate_proj": (ff, hidden), b + "mlp.up_proj": (ff, hidden),
            b + "mlp.down_proj": (hidden, ff)})
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            whole = len(shape) == 2
            (np.resize(pool, shape) if whole else np.full(shape, 0x3F80, np.uint16)).tofile(f)


def make_files(folder):
    checkpoint, gguf = os.path.join(folder, "served"), os.path.join(folder, "served.gguf")
    os.makedirs(checkpoint, exist_ok=True)
    eos = CONFIG["vocab_size"] - 1
    with open(os.path.join(checkpoint, "config.json"), "w", encoding="utf-8") as f:
        json.dump(CONFIG | {"eos_token_id": eos, "bos_token_id": None}, f)
    with open(os.path.join(checkpoint, "tokenizer.json"), "w", encoding="utf-8") as f:
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
                   "post_processor": None, "decoder": level,
                   "model": {"type": "BPE", "vocab": {w: i for i, w in enumerate(WORDS)}, "merges": []}}, f)
    weights = os.path.join(checkpoint, "model.safetensors")
    for path, write in (weights, write_safetensors), (gguf, lambda p: write_gguf(p, WORDS)):
        if not os.path.exists(path):
            write(path + ".part")
            os.rename(path + ".part", path)
    return checkpoint, gguf


def answers(url):
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as r:
            return r.status == 200
    except OSError:
        return False


class Servers:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.checkpoint, self.gguf = make_files(folder)
        self.slots, self.context = max(options.clients), options.sequence + options.new

    def command(self, who, port):
        o, port = self.options, str(port)
        if who == "llama.cpp":
            t = str(o.threads)
            return [os.path.join(o.llama, "llama-server"), "-m", self.gguf, "--port", port, "-t", t,
                    "-tb", t, "-np", str(self.slots), "-c", str(self.slots * (self.context + 64)),
                    "--no-webui"]
        ranks = 1
        for size in re.findall(r"=(\d+)", o.mesh):
            ranks *= int(size)
        return [o.dtensor, "serve", "--model", self.checkpoint, "--port", port, "--mesh", o.mesh,
                "--threads", str(max(1, o.threads // ranks)), "--context", str(self.context + 64),
                "--max-running", str(self.slots), "--pool-tokens", str(self.slots * (self.context + 128)),
                *o.serve_option]

    def load(self, who, port):
        o, url = self.options, f"http://127.0.0.1:{port}"
        with open(os.path.join(self.folder, who + ".log"), "w", encoding="utf-8") as log:
            server = subprocess.Popen(self.command(who, port), stdout=log, stderr=log)
        try:
            until = time.monotonic() + 300
            while not answers(url):
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{who} does not answer: {log.name}")
                time.sleep(0.2)
            return [json.loads(subprocess.run(
                [o.dtensor, "bench", "--serve", url, "--clients", str(n), "--requests",
                 str(n * o.per_client), "--sequence", str(o.sequence), "-n", str(o.new), "--json"],
                capture_output=True, text=True, check=True).stdout)["runs"][0] for n in o.clients]
        finally:
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--gguf-py", help="its source of the package gguf")
    parser.add_argument("--dtensor", required=True, help="the command")
    parser.add_argument("--clients", type=numbers, default="1,4,8,16,32")
    parser.add_argument("--sequence", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--per-client", type=int, default=2, help="requests")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--mesh", default="tp=2")
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--serve-option", action="append", default=[], help="a word more for dtensor serve")
    parser.add_argument("--folder", help="where files are made and kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.gguf_py:
        sys.path.insert(0, options.gguf_py)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        os.makedirs(folder, exist_ok=True)
        servers, found = Servers(options, folder), {"llama.cpp": [], "dtensor": []}
        for i in range(options.rounds):
            for j, who in enumerate(found):
                found[who].append(servers.load(who, 18080 + 2 * i + j))
    rows = []
    for i, n in enumerate(options.clients):
        row = {"clients": n}
        for who, rounds in found.items():
            def middle(of, rounds=rounds, i=i):
                return statistics.median(of(r[i]) for r in rounds)
            row[who] = {"tokens_per_s": middle(lambda r: r["output_tokens_per_s"]),
                        "failed": sum(r[i]["failed"] for r in rounds),
                        "first_ms": middle(lambda r: r["ttft"]["p50_ms"]),
                        "gap_ms": middle(lambda r: r["itl"]["p50_ms"]),
                        "gap_p99_ms": middle(lambda r: r["itl"]["p99_ms"])}
        row["ratio"] = row["dtensor"]["tokens_per_s"] / row["llama.cpp"]["tokens_per_s"]
        rows.append(row)
    if options.json:
        print(json.dumps({"bench": "compare_llama_server", "mesh": options.mesh,
                          "threads": options.threads, "rows": rows}, indent=1))
        return
    print("| clients | server | tokens/s | first token, ms | gap, ms | gap, 99 %, ms | failed | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        for who in found:
            r = row[who]
            print(f"| {row['clients']} | {who} | {r['tokens_per_s']:.1f} | {r['first_ms']:.0f} |",
                  f"{r['gap_ms']:.0f} | {r['gap_p99_ms']:.0f} | {r['failed']} |",
                  f"{row['ratio']:.2f} |" if who == "dtensor" else "|")


if __name__ == "__main__":
    main()
