#!/usr/bin/env python3
"""Encoding speed of dtensor beside the Hugging Face library, on one core, in one run.

Takes text files until there are --megabytes of UTF-8, cuts them into documents of --document bytes
(0: one text) and encodes them with both libraries in turns, in batches of one call. The ids must be
equal. Prints MB/s of both, medians over rounds, and the ratio with its least and most.

    python3 bench/tokenizer_speed.py --library build/release/lib/libdtensor.so FILE...

Needs tokenizers; --tokenizer DIR (any folder with a tokenizer.json, may be repeated) takes the place
of the five fixtures.
"""

import argparse
import ctypes
import json
import os
import statistics
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402  (reads the environment)

FIXTURES = ["llama3", "qwen", "gemma", "phi3", "gpt2"]
ADD_SPECIAL_AND_PARSE = 3


class Ours:
    def __init__(self, library, folder):
        self.lib, self.handle = library, ctypes.c_void_p()
        status = self.lib.dt_tokenizer_open(folder.encode(), ctypes.byref(self.handle))
        assert status == 0, f"{folder}: status {status}"

    def prepare(self, texts):
        data = [t.encode() for t in texts]
        return (ctypes.c_char_p * len(data))(*data), (ctypes.c_size_t * len(data))(*map(len, data))

    def encode(self, prepared, copy=False):
        texts, sizes = prepared
        ids, starts = ctypes.c_void_p(), ctypes.c_void_p()
        status = self.lib.dt_tokenizer_encode_batch(
            self.handle, texts, sizes, ctypes.c_size_t(len(texts)), ADD_SPECIAL_AND_PARSE,
            ctypes.byref(ids), ctypes.byref(starts))
        assert status == 0, f"status {status}"
        n = (ctypes.c_size_t * (len(texts) + 1)).from_address(starts.value)[len(texts)]
        found = list((ctypes.c_int32 * n).from_address(ids.value)) if copy else None
        self.lib.dt_tokenizer_free(ids)
        self.lib.dt_tokenizer_free(starts)
        return found


def read_text(files, n_bytes):
    parts, n = [], 0
    for name in files:
        with open(name, encoding="utf-8", errors="replace") as f:
            data = f.read().encode()[:n_bytes - n]
        parts.append(data)
        n += len(data)
        if n >= n_bytes:
            break
    return b"".join(parts).decode(errors="replace")


def documents(text, n_bytes):
    """Pieces of about n_bytes, cut between characters."""
    if n_bytes == 0:
        return [text]
    data, out, at = text.encode(), [], 0
    while at < len(data):
        end = min(at + n_bytes, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        out.append(data[at:end].decode())
        at = end
    return out


def seconds(f, *args):
    start = time.perf_counter()
    f(*args)
    return time.perf_counter() - start


def measure(library, folder, texts, rounds):
    ours, theirs = Ours(library, folder), Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    prepared = ours.prepare(texts)
    expected = [i for e in theirs.encode_batch_fast(texts) for i in e.ids]
    assert ours.encode(prepared, copy=True) == expected, f"{folder}: the ids differ"
    times = [(seconds(ours.encode, prepared), seconds(theirs.encode_batch_fast, texts))
             for _ in range(rounds)]
    megabytes = sum(prepared[1]) / 1e6
    ratios = [b / a for a, b in times]
    return {"tokenizer": os.path.basename(folder), "vocabulary": theirs.get_vocab_size(),
            "megabytes": megabytes, "documents": len(texts), "ids": len(expected),
            "dtensor_mbs": megabytes / statistics.median(a for a, _ in times),
            "tokenizers_mbs": megabytes / statistics.median(b for _, b in times),
            "ratio": statistics.median(ratios), "ratio_least": min(ratios), "ratio_most": max(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--library", default="build/release/lib/libdtensor.so")
    parser.add_argument("--tokenizer", action="append")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--document", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    library = ctypes.CDLL(os.path.abspath(args.library))
    folders = args.tokenizer or [f"tests/golden/tokenizer/{name}" for name in FIXTURES]
    texts = documents(read_text(args.files, int(args.megabytes * 1e6)), args.document)
    rows = []
    for folder in folders:
        row = measure(library, folder, texts, args.rounds)
        rows.append(row)
        if not args.json:
            print("{tokenizer:12} {vocabulary:7d} tokens  {megabytes:5.1f} MB in {documents:5d}  dtensor "
                  "{dtensor_mbs:6.1f} MB/s  tokenizers {tokenizers_mbs:6.1f} MB/s  ratio {ratio:5.2f} "
                  "({ratio_least:.2f} to {ratio_most:.2f})".format(**row), flush=True)
    if args.json:
        print(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
