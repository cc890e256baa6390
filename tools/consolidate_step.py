#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a step of a run's folder in Python: tensors by the boxes of training.json, and the same as
PyTorch's own consolidation of distributed checkpoints puts them together; fails if they differ.

    tools/consolidate_step.py RUN/step-00001000 [OUTPUT]

Needs torch (tried with 2.15) and safetensors. OUTPUT keeps what PyTorch has made.
"""
import glob
import json
import sys
import tempfile

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def main(step, output):
    manifest = json.load(open(f"{step}/training.json"))
    tensors = {t["name"]: t for t in manifest["tensors"]}
    files = [load_file(f"{step}/{f['name']}") for f in manifest["files"]]
    consolidate_safetensors_files(step, output, {name: 1 for name in tensors})
    theirs = {}
    for path in glob.glob(f"{output}/*.safetensors"):
        theirs.update(load_file(path))
    for name, t in tensors.items():
        ours = torch.full(t["shape"], float("nan"), dtype=DTYPES[t["dtype"]])
        for file, begin, extent in t["boxes"]:
            ours[tuple(slice(b, b + n) for b, n in zip(begin, extent))] = files[file][name]
        if not torch.equal(ours, theirs[name]):
            sys.exit(f"{name}: PyTorch reads other values")
    print(f"{step}: {len(tensors)} tensors are the same")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
