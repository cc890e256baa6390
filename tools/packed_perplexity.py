#!/usr/bin/env python3
"""What weights of 8 and 4 bits cost: the perplexity of a text before and after.

    tools/packed_perplexity.py DTENSOR MODEL TEXT [WEIGHTS ...]

The last 4 % of the text, which examples/21_train_text.c holds out, in rows of 255 tokens behind the
beginning of a text, by `dtensor logits`. WEIGHTS are values of --weights; without any those of
docs/packed_weights.md. Prints a row of its table for each. Needs nothing but Python.
"""

import json
import math
import subprocess
import sys
import tempfile

ROW, MOST_ROWS = 255, 32
ALL = ["int8", "int8,group=32", "int4", "int4,group=32", "int4,asymmetric", "int4,group=32,asymmetric"]


def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def loss(logits, token):
    most = max(logits)
    return most + math.log(sum(math.exp(x - most) for x in logits)) - logits[token]


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    dtensor, model, path = sys.argv[1:4]
    with open(path, encoding="utf-8") as f:
        text = f.read()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as part:
        part.write(text[len(text) * 24 // 25:])
        part.flush()
        ids = [int(i) for i in run(dtensor, "tokenize", "--model", model, "--prompt-file",
                                   part.name).strip().split(",")]
    first, ids = ids[0], ids[1:] # what a text begins with
    rows = [ids[i:i + ROW] for i in range(0, len(ids) - ROW, ROW)][:MOST_ROWS]
    for weights in [""] + (sys.argv[4:] or ALL):
        total = 0.0
        for row in rows:
            words = ["--weights", weights] if weights else []
            tokens = ",".join(map(str, [first] + row[:-1]))
            logits = json.loads(run(dtensor, "logits", "--model", model, "--tokens", tokens, "--json", "--quiet",
                                    *words))["logits"]
            total += sum(loss(l, t) for l, t in zip(logits, row))
        mean = total / (len(rows) * ROW)
        print(f"| {weights or 'as they are'} | {mean:.4f} | {math.exp(mean):.3f} |", flush=True)


if __name__ == "__main__":
    main()
