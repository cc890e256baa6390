#!/usr/bin/env python3
"""Make tests/golden/activations.safetensors: what Transformers' activations give for some values.

    x_f32, x_bf16, x_f16           the values, in three dtypes
    NAME_f32, NAME_bf16, NAME_f16  ACT2FN[NAME] of them, for every name that has no weights

Run, from the repository root: python3 tools/make_activations_golden.py. Needs torch, transformers
and safetensors.
"""

import torch
from safetensors.torch import save_file
from transformers.activations import ACT2FN

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
WITH_WEIGHTS = ("prelu", "xielu")

generator = torch.Generator().manual_seed(7)
x = torch.cat([torch.linspace(-12, 12, 97), torch.randn(160, generator=generator) * 2,
               torch.tensor([0.0, 1e-3, -1e-3, 30.0, -30.0, 100.0, -100.0])])
out = {}
for suffix, dtype in DTYPES.items():
    values = x.to(dtype)
    out[f"x_{suffix}"] = values
    for name in ACT2FN:
        if name not in WITH_WEIGHTS:
            out[f"{name}_{suffix}"] = ACT2FN[name](values).contiguous().clone()
save_file(out, "tests/golden/activations.safetensors")
print(len(out), "tensors of", len(x), "values")
