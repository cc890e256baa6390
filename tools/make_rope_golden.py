#!/usr/bin/env python3
"""Make tests/golden/rope.json: rotary frequencies of Transformers for each variant and spelling.

One object per case: "name"; "config", as config.json would hold it; "phi3" where the keys are
Phi-3's; "length" of the sequence; and what Transformers makes of that: "inv_freq" and
"attention_factor", which multiplies cosines and sines.

Run, from the repository root:

    python3 tools/make_rope_golden.py

Needs torch and transformers.
"""

import copy
import json

import torch
import transformers
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HEADS = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
         "max_position_embeddings": 512}
PHI3 = {"hidden_size": 80, "num_attention_heads": 5, "max_position_embeddings": 512}
SHORT = [1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 2.5, 3.0]
LONG = [1.0, 1.5, 2.5, 4.0, 8.0, 16.0, 24.0, 32.0]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}


def v5(theta=10000.0, **keys):
    return {"rope_parameters": {"rope_theta": theta, **keys}}


def v4(theta=10000.0, **keys):
    keys["type"] = keys.pop("rope_type")
    return {"rope_theta": theta, "rope_scaling": keys}


# name: class, keys of config.json, length
CASES = {
    "default": (LlamaConfig, v5(500.0, rope_type="default"), 1),
    "default, nothing said": (LlamaConfig, {}, 1),
    "linear": (LlamaConfig, v5(rope_type="linear", factor=2.5), 1),
    "linear, old spelling": (LlamaConfig, v4(rope_type="linear", factor=2), 1),
    "dynamic, short": (LlamaConfig, v5(rope_type="dynamic", factor=4.0), 100),
    "dynamic, at its length": (LlamaConfig, v5(rope_type="dynamic", factor=4.0), 512),
    "dynamic, one more": (LlamaConfig, v5(rope_type="dynamic", factor=4.0), 513),
    "dynamic, long": (LlamaConfig, v4(rope_type="dynamic", factor=2.0), 1900),
    "llama3": (LlamaConfig, v5(500.0, original_max_position_embeddings=64, **LLAMA3), 1),
    "llama3, old spelling": (LlamaConfig, v4(500.0, original_max_position_embeddings=64,
                                             **LLAMA3), 1),
    "llama3, length by default": (LlamaConfig, v5(500.0, **LLAMA3), 1),
    "llama3, length at the root": (LlamaConfig, {
        "original_max_position_embeddings": 32,
        **v5(500.0, original_max_position_embeddings=64, **LLAMA3)}, 1),
    "yarn": (LlamaConfig, v5(1e4, **YARN), 1),
    "yarn, old spelling": (LlamaConfig, v4(1e4, **YARN), 1),
    "yarn, factor null": (LlamaConfig, v5(1e4, **{**YARN, "factor": None}), 1),
    "yarn, attention factor": (LlamaConfig, v5(1e4, attention_factor=1.75, **YARN), 1),
    "yarn, mscale": (LlamaConfig, v5(1e4, mscale=0.707, mscale_all_dim=1.2, **YARN), 1),
    "yarn, mscale alone": (LlamaConfig, v5(1e4, mscale=0.707, **YARN), 1),
    "yarn, betas": (LlamaConfig, v5(100.0, beta_fast=8, beta_slow=2, **YARN), 1),
    "yarn, not truncated": (LlamaConfig, v5(100.0, truncate=False, beta_fast=8, **YARN), 1),
    "yarn, no ramp": (LlamaConfig, v5(1e9, beta_fast=1, beta_slow=1, **YARN), 1),
    "longrope, short": (LlamaConfig, v5(original_max_position_embeddings=128, **LONGROPE), 128),
    "longrope, long": (LlamaConfig, v5(original_max_position_embeddings=128, **LONGROPE), 129),
    "longrope, factor": (LlamaConfig, v5(original_max_position_embeddings=128, factor=16.0,
                                         **LONGROPE), 200),
    "longrope, no stretch": (LlamaConfig, v5(original_max_position_embeddings=512, **LONGROPE), 9),
    "longrope, attention factor": (LlamaConfig, v5(
        original_max_position_embeddings=128, attention_factor=1.25, **LONGROPE), 9),
    "phi3, part of a head": (Phi3Config, {"partial_rotary_factor": 0.5}, 1),
    "phi3, an odd part": (Phi3Config, {"partial_rotary_factor": 0.7}, 1),
    "phi3, part, new spelling": (Phi3Config, v5(5000.0, partial_rotary_factor=0.25,
                                                rope_type="default"), 1),
    "phi3, su": (Phi3Config, {"original_max_position_embeddings": 128,
                              **v4(original_max_position_embeddings=128,
                                   **{**LONGROPE, "rope_type": "su"})}, 300),
    "phi3, called yarn": (Phi3Config, {"original_max_position_embeddings": 128,
                                       **v4(original_max_position_embeddings=128,
                                            **{**LONGROPE, "rope_type": "yarn"})}, 30),
    "phi3, longrope of a part": (Phi3Config, {
        "original_max_position_embeddings": 128, "partial_rotary_factor": 0.5,
        **v5(rope_type="longrope", short_factor=SHORT[:4], long_factor=LONG[:4])}, 129),
    "phi3, length by default": (Phi3Config, v5(original_max_position_embeddings=128,
                                               **LONGROPE), 300),
}


def default(config):
    p = config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim = int(head_dim * (p.get("partial_rotary_factor") or 1.0))
    return 1.0 / (p["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)), 1.0


def case(name):
    config_class, keys, length = CASES[name]
    keys = {**(PHI3 if config_class is Phi3Config else HEADS), **keys}
    config = config_class.from_dict(copy.deepcopy(keys))
    rope_type = config.rope_parameters["rope_type"]
    if rope_type == "default":
        inv_freq, factor = default(config)
    else:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"),
                                                          seq_len=length)
    return {"name": name, "phi3": config_class is Phi3Config, "config": keys, "length": length,
            "attention_factor": float(factor), "inv_freq": [x.item() for x in inv_freq.float()]}


def main():
    transformers.utils.logging.set_verbosity_error()
    with open("tests/golden/rope.json", "w", encoding="ascii") as f:
        rows = [json.dumps(case(name)) for name in CASES]
        f.write('{"transformers": "' + transformers.__version__ + '", "cases": [\n'
                + ",\n".join(rows) + "\n]}\n")


if __name__ == "__main__":
    main()
