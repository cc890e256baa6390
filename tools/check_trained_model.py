#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model that was trained here loads in Transformers and computes the same there.

Trains a few steps on two ranks (examples/21_train_text.c, or --model: a folder that is there
already), opens what was saved with Transformers, and compares: the loss of the text that was held
out, in f32, which may differ by 1e-5; the tokens that follow a prompt, greedy, which must be equal.

    python3 tools/check_trained_model.py [--build build/release] [--model DIR] [--steps 20]

Prints one JSON object, and ends with 1 if they differ. docs/training.md has a result. Needs torch,
transformers and tokenizers.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

LENGTH, BOUND = 256, 1e-5
TEXT = "examples/data/tinyshakespeare.txt"


def windows(tokenizer, text, most):
    """The end of a text, 4 % of it, in rows that begin with the token for a beginning."""
    cut = text.rindex("\n\n", 0, int(len(text) * 0.96)) + 2
    ids = tokenizer.encode(text[cut:], add_special_tokens=False)
    begin = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    each = LENGTH - len(begin)
    return [begin + ids[i:i + each] for i in range(0, len(ids) - each, each)][:most]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)[:200]}: {done.stderr.strip()}")
    return done.stdout


def ours(options, folder, rows, prompt):
    """Loss and greedy tokens of the command."""
    dtensor = os.path.join(options.build, "bin", "dtensor")
    text = ";".join(",".join(map(str, r)) for r in rows)
    loss = json.loads(run([dtensor, "gradients", "--model", folder, "--dtype", "f32", "--mesh",
                           options.mesh, "--chunk", "64", "--recompute", "blocks", "--tokens", text,
                           "--json", "-q"]))["loss"]
    said = json.loads(run([dtensor, "generate", "--model", folder, "--dtype", "f32", "--mesh",
                           options.mesh, "--greedy", "--ignore-eos", "-n", str(options.tokens),
                           "--tokens", ",".join(map(str, prompt)), "--json", "-q"]))
    return loss, said["tokens"]


def theirs(options, folder, rows, prompt):
    import torch
    import transformers
    torch.set_num_threads(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        total = sum(model(input_ids=r, labels=r).loss.item() * len(r)
                    for r in torch.tensor(rows).split(16))
        ids = torch.tensor([prompt])
        new = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             min_new_tokens=options.tokens, max_new_tokens=options.tokens,
                             pad_token_id=0)[0, len(prompt):].tolist()
    return total / len(rows), new, f"torch {torch.__version__}, transformers {transformers.__version__}"


def check(options, folder):
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with open(TEXT, encoding="utf-8") as f:
        rows = windows(tokenizer, f.read(), options.rows)
    prompt = tokenizer.encode("ROMEO:")
    loss, ids = ours(options, folder, rows, prompt)
    their_loss, their_ids, versions = theirs(options, folder, rows, prompt)
    same = next((i for i, (a, b) in enumerate(zip(ids, their_ids)) if a != b), len(ids))
    return {"trained": options.model or f"{options.steps} steps on dp=2", "mesh": options.mesh,
            "tokens": sum(len(r) - 1 for r in rows), "loss": loss, "transformers_loss": their_loss,
            "off": abs(loss / their_loss - 1), "greedy_tokens": len(ids), "greedy_equal": same,
            "with": versions}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--model", help="a folder that was saved; else one is trained")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=64, help="windows of the held-out text")
    parser.add_argument("--tokens", type=int, default=40, help="that follow the prompt")
    parser.add_argument("--mesh", default="tp=2", help="of the command's own runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = options.model
        if folder is None:
            folder = os.path.join(work, "trained")
            run([os.path.join(options.build, "examples", "21_train_text"), "examples/checkpoint", TEXT,
                 str(options.steps), folder])
        result = check(options, folder)
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["off"] <= BOUND and result["greedy_equal"] == options.tokens else 1)


if __name__ == "__main__":
    main()
