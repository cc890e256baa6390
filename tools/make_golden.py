#!/usr/bin/env python3
"""Make tests/golden/<architecture>/<name>/: tiny random checkpoints and what Transformers makes of them.

Each folder is a Hugging Face folder (config.json, generation_config.json, safetensors) with one
file more, expected.safetensors, computed with attn_implementation="eager" on the CPU:

    prompt           I64 [T]
    logits_f32       F32 [T, V]   logits of the checkpoint loaded in float32
    logits_bf16      F32 [T, V]   the same, loaded in bfloat16, logits cast to float32
    greedy_f32       I64 [40]     the new tokens of generate(do_sample=False), no end token
    beams_f32        I64 [3, 12]  the new tokens of generate(num_beams=3), best beam first
    beam_scores_f32  F32 [3]      their scores

Norm weights and biases are random too, so that a forgotten one shows. A token is compared
exactly, so every decision must be wider than rounding: for each fixture the script walks over
seeds and gains of the weights, drops those that miss a bound, keeps the one with the widest
decisions and asserts the bounds once more on the files it wrote:

    - smallest top-2 margin of the 40 greedy steps > 1e-3 of the largest |logit|
    - at least 20 distinct tokens among the 40
    - float64 gives the same tokens and beams, and logits within 2e-6 of the largest |logit|
    - beams stay the same under noise of 1e-4 of the largest |logit|
    - a router's choice of experts, on the prompt, is wider than 0.05 of the rms of its logits, and
      the same in bfloat16
    - of the fixtures behind qwen3/relu2 (which 20 seeds are tried for, more where none holds),
      bfloat16 is off by no less than it is on 32 other prompts on average
    - from qwen3_next/base on, logits stay within 5e-6 where elements of the embedding move by an ulp

Run, from the repository root (about ten minutes; a name makes that fixture alone, and no README):

    python3 tools/make_golden.py [llama/tied ...]

Needs torch, transformers and safetensors.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText,
                          Cohere2Config, CohereConfig, CwmConfig, DeepseekV3Config, Ernie4_5Config, Exaone4Config,
                          FalconConfig, Gemma2Config, Gemma3Config, Gemma3TextConfig, GemmaConfig,
                          Glm4Config, Glm4MoeConfig, GlmConfig, GPT2Config, GPT2LMHeadModel, GPTBigCodeConfig,
                          GPTJConfig, GPTNeoConfig, GPTNeoXConfig, GptOssConfig, GraniteConfig, LlamaConfig,
                          LogitsProcessor, LogitsProcessorList, Ministral3Config, MinistralConfig,
                          Mistral3Config, MistralConfig, MixtralConfig, Olmo2Config, Olmo3Config, Phi3Config,
                          PhiConfig, Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig,
                          Qwen3NextConfig,
                          SeedOssConfig, SmolLM3Config, StableLmConfig, Starcoder2Config)

NEW_TOKENS, BEAMS, BEAM_TOKENS = 40, 3, 12
MIN_MARGIN, MIN_DISTINCT, MIN_GAP = 1e-3, 20, 0.05
SEEDS, GAINS = range(1, 61), (1.5, 2.0, 3.0)
STEADY = "qwen3_next/base"  # the first that is steady
WIDE_SEARCH, FEW_SEEDS = "qwen3/relu2", 20  # the last with all seeds; those behind it, where one holds

NO_SPECIAL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

# name: config class, its keys, length of the prompt, dtype on disk, what the fixture is for.
FIXTURES = {
    "llama/uneven": (LlamaConfig, {
        "vocab_size": 257, "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
                            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 32},
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    }, 13, "float32", "sizes that no rank count divides; llama3 RoPE, each of its three branches"),
    "llama/tied": (LlamaConfig, {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
    }, 14, "bfloat16", "head tied to the embedding; stored in bf16; as many KV heads as heads"),
    "llama/biases": (LlamaConfig, {
        "vocab_size": 96, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64, "attention_bias": True, "mlp_bias": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    }, 12, "float32", "biases everywhere; head_dim is not hidden/heads; linear RoPE; "
                      "config.json in the spelling of Transformers 4"),
    "llama/sharded": (LlamaConfig, {
        "vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    }, 16, "float32", "three safetensors files and an index"),
    "llama/yarn": (LlamaConfig, {
        "vocab_size": 128, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                            "original_max_position_embeddings": 16, "beta_fast": 2.0,
                            "beta_slow": 0.5},
        "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
    }, 18, "float32", "YaRN with its attention factor, each part of its ramp"),
    "qwen2/base": (Qwen2Config, {
        "vocab_size": 144, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }, 14, "bfloat16", "biases on q, k and v alone; tied; stored in bf16"),
    "qwen2/windows": (Qwen2Config, {
        "vocab_size": 113, "hidden_size": 40, "intermediate_size": 69, "num_hidden_layers": 4,
        "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
    }, 17, "float32", "windows of 7 in the upper layers; sizes that no rank count divides; one "
                      "KV head"),
    "qwen2/dynamic": (Qwen2Config, {
        "vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 24,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    }, 13, "float32", "dynamic RoPE that sets in after the prompt; config.json in the spelling of "
                      "Transformers 4"),
    "qwen3/windows": (Qwen3Config, {
        "vocab_size": 128, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8,
        "max_position_embeddings": 64, "use_sliding_window": True, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
    }, 12, "float32", "windows by layer_types, longer than the prompt and shorter than the text"),
    "qwen3/base": (Qwen3Config, {
        "vocab_size": 160, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 64, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }, 15, "float32", "q and k norms; tied; head_dim is not hidden/heads"),
    "qwen3/uneven": (Qwen3Config, {
        "vocab_size": 131, "hidden_size": 40, "intermediate_size": 77, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 8,
        "max_position_embeddings": 64, "attention_bias": True, "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    }, 13, "float32", "sizes that no rank count divides; attention biases; untied"),
    "gemma3/base": (Gemma3TextConfig, {
        "vocab_size": 130, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 7,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64, "sliding_window": 6, "query_pre_attn_scalar": 12,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
    }, 15, "bfloat16", "one global layer in seven; windows shorter than the prompt; stored in bf16"),
    "gemma3/uneven": (Gemma3TextConfig, {
        "vocab_size": 101, "hidden_size": 36, "intermediate_size": 53, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 10,
        "max_position_embeddings": 64, "sliding_window": 24, "query_pre_attn_scalar": 10,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "final_logit_softcapping": 5.0, "attention_bias": True, "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; windows longer than the prompt; logits "
                      "capped; untied"),
    "gemma3/multimodal": (Gemma3Config, {
        "vocab_size": 120,
        "text_config": {
            "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8,
            "max_position_embeddings": 64, "sliding_window": 9, "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-6},
        "vision_config": {
            "model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8, "patch_size": 4},
        "mm_tokens_per_image": 4, "image_token_index": 119, "boi_token_index": 118,
        "eoi_token_index": 117,
    }, 12, "float32", "the text part of a multimodal checkpoint"),
    "phi3/base": (Phi3Config, {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "original_max_position_embeddings": 64, "sliding_window": 8,
        "partial_rotary_factor": 0.75, "tie_word_embeddings": False,
    }, 16, "bfloat16", "packed q, k, v and gate, up; three quarters of a head rotate; window 8"),
    "phi3/uneven": (Phi3Config, {
        "vocab_size": 111, "hidden_size": 50, "intermediate_size": 61, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 5, "max_position_embeddings": 64,
        "original_max_position_embeddings": 64, "tie_word_embeddings": True,
    }, 13, "float32", "sizes that no rank count divides; tied"),
    "phi3/longrope": (Phi3Config, {
        "vocab_size": 120, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 96,
        "original_max_position_embeddings": 24, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 1000.0,
                            "short_factor": [1.0, 1.1, 1.3, 1.5],
                            "long_factor": [1.0, 2.0, 5.0, 9.0],
                            "original_max_position_embeddings": 24},
    }, 14, "float32", "longrope that turns from short to long factors after the prompt"),
    "qwen3_moe/base": (Qwen3MoeConfig, {
        "vocab_size": 128, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
        "max_position_embeddings": 64, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
    }, 9, "float32", "experts under a name each, as files of Transformers 4 have them"),
    "qwen3_moe/uneven": (Qwen3MoeConfig, {
        "vocab_size": 101, "hidden_size": 40, "intermediate_size": 50, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 8, "num_experts": 5,
        "num_experts_per_tok": 3, "moe_intermediate_size": 21, "norm_topk_prob": False,
        "mlp_only_layers": [1], "max_position_embeddings": 64, "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    }, 8, "float32", "sizes and experts that no rank count divides; all experts in one tensor; "
                     "a dense layer between; weights of experts not renormalised"),
    "gpt_neo/base": (GPTNeoConfig, {
        "vocab_size": 128, "hidden_size": 48, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "window_size": 8,
        "max_position_embeddings": 64,
    }, 14, "float32", "global and local layers, window 8; feed-forward width by default"),
    "gpt_neo/wide": (GPTNeoConfig, {
        "vocab_size": 120, "hidden_size": 32, "num_layers": 4, "num_heads": 2,
        "attention_types": [[["global", "local"], 2]], "window_size": 20,
        "max_position_embeddings": 64, "tie_word_embeddings": False,
    }, 13, "bfloat16", "windows longer than the prompt and shorter than the text; untied; stored "
                       "in bf16"),
    "gpt_neo/uneven": (GPTNeoConfig, {
        "vocab_size": 101, "hidden_size": 36, "num_layers": 3, "num_heads": 3,
        "attention_types": [[["local", "global"], 1], [["local"], 1]], "window_size": 5,
        "intermediate_size": 50, "max_position_embeddings": 64,
    }, 12, "float32", "sizes that no rank count divides; window 5"),
    "llama/gelu": (LlamaConfig, {
        "vocab_size": 67, "hidden_size": 24, "intermediate_size": 33, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 64,
        "hidden_act": "gelu", "tie_word_embeddings": False,
    }, 9, "bfloat16", "exact gelu instead of silu"),
    "gpt_neo/relu": (GPTNeoConfig, {
        "vocab_size": 64, "hidden_size": 24, "num_layers": 2, "num_heads": 3,
        "attention_types": [[["global", "local"], 1]], "window_size": 7,
        "intermediate_size": 40, "max_position_embeddings": 64, "activation_function": "relu",
    }, 9, "float32", "relu instead of gelu_new"),
    "gemma3/silu": (Gemma3TextConfig, {
        "vocab_size": 66, "hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 10,
        "max_position_embeddings": 64, "sliding_window": 8, "query_pre_attn_scalar": 10,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "hidden_activation": "silu", "tie_word_embeddings": False,
    }, 9, "float32", "silu instead of gelu_pytorch_tanh"),
    "qwen3/relu2": (Qwen3Config, {
        "vocab_size": 68, "hidden_size": 24, "intermediate_size": 35, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "max_position_embeddings": 64, "hidden_act": "relu2", "tie_word_embeddings": True,
    }, 9, "float32", "squared relu instead of silu"),
    "mistral/base": (MistralConfig, {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
        "max_position_embeddings": 64, "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    }, 12, "bfloat16", "no window; head_dim is not hidden/heads; stored in bf16; config.json in the "
                       "spelling of Transformers 4"),
    "mistral/uneven": (MistralConfig, {
        "vocab_size": 83, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "sliding_window": 7, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
    }, 13, "float32", "a window of 7 on all layers; sizes that no rank count divides; one KV head"),
    "mistral/multimodal": (Mistral3Config, {
        "vocab_size": 90,
        "text_config": {
            "model_type": "mistral", "vocab_size": 90, "hidden_size": 32, "intermediate_size": 40,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 6, "max_position_embeddings": 64, "sliding_window": None,
            "rms_norm_eps": 1e-5, "rope_theta": 1000.0, **NO_SPECIAL},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "head_dim": 4,
            "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        "image_token_index": 89, "tie_word_embeddings": False,
    }, 11, "float32", "the text part of a mistral3 checkpoint"),
    "ministral/base": (MinistralConfig, {
        "vocab_size": 84, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8,
        "max_position_embeddings": 64, "sliding_window": 6,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
    }, 10, "bfloat16", "windows by layer_types; tied; stored in bf16"),
    "ministral/uneven": (MinistralConfig, {
        "vocab_size": 77, "hidden_size": 26, "intermediate_size": 37, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6,
        "max_position_embeddings": 64, "sliding_window": 20, "tie_word_embeddings": False,
    }, 12, "float32", "sizes that no rank count divides; windows of all layers, longer than the "
                      "prompt and shorter than the text"),
    "smollm3/base": (SmolLM3Config, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 7,
    }, 11, "bfloat16", "every second layer without positions, which is windowed; tied; stored in "
                       "bf16"),
    "smollm3/uneven": (SmolLM3Config, {
        "vocab_size": 81, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "no_rope_layers": [1, 0, 1], "attention_bias": True, "mlp_bias": True,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                            "original_max_position_embeddings": 16},
        "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; biases; layers without positions by name; "
                      "YaRN; untied"),
    "granite/base": (GraniteConfig, {
        "vocab_size": 94, "hidden_size": 32, "intermediate_size": 45, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.6,
        "logits_scaling": 6.0, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    }, 12, "bfloat16", "all four multipliers; tied; stored in bf16"),
    "granite/uneven": (GraniteConfig, {
        "vocab_size": 79, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 5, "max_position_embeddings": 64,
        "embedding_multiplier": 12.0, "attention_multiplier": 0.3, "residual_multiplier": 0.22,
        "logits_scaling": 0.7, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; biases; untied"),
    "seed_oss/base": (SeedOssConfig, {
        "vocab_size": 93, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
        "max_position_embeddings": 64, "tie_word_embeddings": False,
    }, 12, "bfloat16", "biases on q, k and v by default; stored in bf16"),
    "seed_oss/uneven": (SeedOssConfig, {
        "vocab_size": 82, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 64, "attention_bias": False, "attention_out_bias": True,
        "mlp_bias": True, "tie_word_embeddings": True,
    }, 13, "float32", "sizes that no rank count divides; biases on o and the MLP; tied"),
    "cwm/base": (CwmConfig, {
        "vocab_size": 86, "hidden_size": 36, "intermediate_size": 46, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6,
        "bos_token_id": 0, "max_position_embeddings": 128, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    }, 12, "bfloat16", "each fourth layer full, from the first; llama3 RoPE; stored in bf16"),
    "cwm/uneven": (CwmConfig, {
        "vocab_size": 78, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "sliding_window": 20,
        "bos_token_id": 0, "max_position_embeddings": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "tie_word_embeddings": True,
    }, 11, "float32", "sizes that no rank count divides; windows by layer_types; tied"),
    "exaone4/base": (Exaone4Config, {
        "vocab_size": 90, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "sliding_window": 6, "sliding_window_pattern": 3, "tie_word_embeddings": False,
    }, 12, "bfloat16", "norms behind attention and MLP, none before; every third layer full and "
                       "without positions; stored in bf16"),
    "exaone4/uneven": (Exaone4Config, {
        "vocab_size": 77, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 64,
        "sliding_window": None, "layer_types": ["full_attention", "full_attention"],
        "tie_word_embeddings": True,
    }, 13, "float32", "sizes that no rank count divides; no windows, so all layers rotate; tied"),
    "gemma/base": (GemmaConfig, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 12,
        "max_position_embeddings": 64, "hidden_act": "gelu",
    }, 12, "bfloat16", "one KV head; gelu, which means its tanh here; stored in bf16"),
    "gemma/uneven": (GemmaConfig, {
        "vocab_size": 79, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 6,
        "max_position_embeddings": 64, "attention_bias": True, "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; biases; untied"),
    "gemma2/base": (Gemma2Config, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
        "max_position_embeddings": 64, "sliding_window": 6, "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0,
    }, 12, "bfloat16", "scores and logits capped; layers in turn local and global; stored in bf16"),
    "gemma2/uneven": (Gemma2Config, {
        "vocab_size": 79, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 6,
        "max_position_embeddings": 64, "sliding_window": 20, "query_pre_attn_scalar": 6,
        "layer_types": ["full_attention", "sliding_attention"], "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": None, "attention_bias": True, "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; windows longer than the prompt; scores "
                      "alone capped; untied"),
    "mixtral/base": (MixtralConfig, {
        "vocab_size": 88, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "num_local_experts": 5, "num_experts_per_tok": 2, "tie_word_embeddings": False,
    }, 9, "float32", "experts in their own spelling, block_sparse_moe and w1, w2, w3"),
    "mixtral/uneven": (MixtralConfig, {
        "vocab_size": 77, "hidden_size": 30, "intermediate_size": 19, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 64, "num_local_experts": 3, "num_experts_per_tok": 2,
        "sliding_window": 7, "tie_word_embeddings": False,
    }, 8, "float32", "sizes and experts that no rank count divides; all experts in one tensor; a "
                     "window"),
    "gpt2/base": (GPT2Config, {
        "vocab_size": 94, "n_embd": 36, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "scale_attn_by_inverse_layer_idx": True,
    }, 12, "bfloat16", "weights [in, out]; q, k, v in one; tied; feed-forward width by default; "
                       "scores divided by the layer's number; stored in bf16"),
    "gpt2/uneven": (GPT2Config, {
        "vocab_size": 89, "n_embd": 35, "n_layer": 2, "n_head": 7, "n_positions": 64, "n_inner": 43,
        "activation_function": "gelu_pytorch_tanh", "scale_attn_weights": False,
        "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; scores as they are; untied"),
    "gpt_bigcode/base": (GPTBigCodeConfig, {
        "vocab_size": 94, "n_embd": 36, "n_layer": 2, "n_head": 6, "n_positions": 64, "n_inner": 56,
    }, 12, "bfloat16", "one KV head, in one weight with q; tied; stored in bf16"),
    "gpt_bigcode/uneven": (GPTBigCodeConfig, {
        "vocab_size": 79, "n_embd": 35, "n_layer": 2, "n_head": 5, "n_positions": 64, "n_inner": 43,
        "multi_query": False, "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; q, k and v of a head together; untied"),
    "gpt_neox/base": (GPTNeoXConfig, {
        "vocab_size": 92, "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 64,
    }, 12, "bfloat16", "attention and MLP side by side, of two norms; a quarter of a head rotates; "
                       "stored in bf16"),
    "gpt_neox/uneven": (GPTNeoXConfig, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "max_position_embeddings": 64, "use_parallel_residual": False,
        "attention_bias": False, "hidden_act": "gelu_new",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                            "partial_rotary_factor": 1.0},
    }, 13, "float32", "sizes that no rank count divides; one after the other; no biases in "
                      "attention; whole heads rotate"),
    "gpt_neox/odd": (GPTNeoXConfig, {
        "vocab_size": 71, "hidden_size": 33, "intermediate_size": 37, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0,
                            "partial_rotary_factor": 0.4},
    }, 11, "float32", "side by side and sizes that no rank count divides; rotary_pct and "
                      "rotary_emb_base at the root, as Transformers 4 has them"),
    "falcon/base": (FalconConfig, {
        "vocab_size": 92, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_kv_heads": 2, "new_decoder_architecture": True, "max_position_embeddings": 64,
    }, 12, "bfloat16", "the new decoder: groups of query heads with their KV head, two norms side by "
                       "side; stored in bf16"),
    "falcon/first": (FalconConfig, {
        "vocab_size": 80, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6,
        "ffn_hidden_size": 50, "max_position_embeddings": 64,
    }, 11, "float32", "the first decoder: one KV head, one norm for both sides"),
    "falcon/uneven": (FalconConfig, {
        "vocab_size": 79, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5,
        "ffn_hidden_size": 43, "multi_query": False, "parallel_attn": False, "bias": True,
        "max_position_embeddings": 64, "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; one after the other; biases; q, k and v of "
                      "a head together; untied"),
    "phi/base": (PhiConfig, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }, 12, "bfloat16", "side by side of one norm; biases everywhere, of the head, too; half a head "
                       "rotates; stored in bf16"),
    "phi/uneven": (PhiConfig, {
        "vocab_size": 149, "hidden_size": 40, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "max_position_embeddings": 64, "qk_layernorm": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                            "partial_rotary_factor": 0.75},
    }, 13, "float32", "sizes that no rank count divides; norms of heads"),
    "starcoder2/base": (Starcoder2Config, {
        "vocab_size": 150, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "sliding_window": 6,
    }, 12, "bfloat16", "a window on all layers; tied; stored in bf16"),
    "starcoder2/uneven": (Starcoder2Config, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "use_bias": False, "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; no biases; untied"),
    "stablelm/base": (StableLmConfig, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "use_qkv_bias": True,
    }, 12, "bfloat16", "one after the other; biases on q, k, v; a quarter of a head rotates; stored "
                       "in bf16"),
    "stablelm/uneven": (StableLmConfig, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 5, "max_position_embeddings": 64,
        "use_parallel_residual": True, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                            "partial_rotary_factor": 0.7},
    }, 13, "float32", "sizes that no rank count divides; side by side, a gated MLP; tied"),
    "glm/base": (GlmConfig, {
        "vocab_size": 92, "hidden_size": 36, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
        "max_position_embeddings": 64,
    }, 12, "bfloat16", "neighbouring columns rotate, of half a head; gate and up in one weight; biases "
                       "on q, k, v; stored in bf16"),
    "glm/uneven": (GlmConfig, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 8, "attention_bias": False,
        "max_position_embeddings": 64, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                            "partial_rotary_factor": 1.0},
    }, 13, "float32", "sizes that no rank count divides; whole heads rotate; tied"),
    "glm4/base": (Glm4Config, {
        "vocab_size": 92, "hidden_size": 36, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
        "max_position_embeddings": 64,
    }, 12, "bfloat16", "norms before and behind attention and MLP, in names of their own; stored in "
                       "bf16"),
    "glm4/uneven": (Glm4Config, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 10,
        "max_position_embeddings": 64, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.6},
    }, 13, "float32", "sizes that no rank count divides; one KV head"),
    "gptj/base": (GPTJConfig, {
        "vocab_size": 92, "n_embd": 36, "n_layer": 2, "n_head": 3, "n_positions": 64,
        "rotary_dim": 8,
    }, 12, "bfloat16", "neighbouring columns rotate, 8 of a head; side by side of one norm; biases of "
                       "MLP and head; stored in bf16"),
    "gptj/uneven": (GPTJConfig, {
        "vocab_size": 131, "n_embd": 30, "n_layer": 2, "n_head": 5, "n_positions": 64,
        "rotary_dim": 6, "n_inner": 43, "activation_function": "gelu",
    }, 13, "float32", "sizes that no rank count divides; whole heads rotate"),
    "cohere/base": (CohereConfig, {
        "vocab_size": 92, "hidden_size": 36, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 64,
        "logit_scale": 0.3,
    }, 12, "bfloat16", "side by side of one layer norm without bias; neighbouring columns rotate, "
                       "rounded once; logits scaled; tied; stored in bf16"),
    "cohere/uneven": (CohereConfig, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "attention_bias": True, "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; biases; untied"),
    "cohere2/base": (Cohere2Config, {
        "vocab_size": 92, "hidden_size": 36, "intermediate_size": 46, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 64,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }, 12, "bfloat16", "layers with a window rotate, full ones do not; tied; stored in bf16"),
    "cohere2/uneven": (Cohere2Config, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "sliding_window": 20, "sliding_window_pattern": 2, "attention_bias": True,
        "tie_word_embeddings": False,
    }, 13, "float32", "sizes that no rank count divides; every second layer full; biases; untied"),
    "ernie4_5/base": (Ernie4_5Config, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
        "max_position_embeddings": 64, "tie_word_embeddings": False,
    }, 12, "bfloat16", "neighbouring columns rotate by a table in f32, rounded once; stored in bf16"),
    "ernie4_5/uneven": (Ernie4_5Config, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 8, "use_bias": True,
        "max_position_embeddings": 64,
    }, 13, "float32", "sizes that no rank count divides; biases; tied"),
    "qwen2_moe/base": (Qwen2MoeConfig, {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 5,
        "num_experts_per_tok": 2, "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28, "max_position_embeddings": 64,
    }, 9, "float32", "experts beside one that all tokens pass, of a gate's size; experts under a name "
                     "each"),
    "qwen2_moe/uneven": (Qwen2MoeConfig, {
        "vocab_size": 83, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 1, "num_experts": 3,
        "num_experts_per_tok": 2, "moe_intermediate_size": 19,
        "shared_expert_intermediate_size": 23, "norm_topk_prob": True, "mlp_only_layers": [1],
        "qkv_bias": False, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2,
        "max_position_embeddings": 64,
    }, 8, "float32", "sizes and experts that no rank count divides; all experts in one tensor; a dense "
                     "layer between; a window on the first layer; no biases"),
    "olmo2/base": (Olmo2Config, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }, 12, "bfloat16", "queries and keys normed over all heads; norms behind alone, rounded once; halves "
                       "rotate in f32; stored in bf16"),
    "olmo2/uneven": (Olmo2Config, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 5, "max_position_embeddings": 64,
        "attention_bias": True,
    }, 13, "float32", "sizes that no rank count divides; biases"),
    "olmo3/base": (Olmo3Config, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "sliding_window": 7, "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
                               "original_max_position_embeddings": 16, "beta_fast": 2.0,
                               "beta_slow": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}},
    }, 12, "bfloat16", "windows in three of four layers, which rotate by a base of their own; YaRN in "
                       "full ones; stored in bf16"),
    "olmo3/uneven": (Olmo3Config, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "sliding_window": 20, "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    }, 13, "float32", "sizes that no rank count divides; one KV head; layers by layer_types; biases"),
    "deepseek_v3/base": (DeepseekV3Config, {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 6,
        "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2, "moe_intermediate_size": 20,
        "first_k_dense_replace": 2, "max_position_embeddings": 64, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "beta_fast": 2.0, "beta_slow": 0.5,
            "original_max_position_embeddings": 16},
    }, 8, "bfloat16", "latent attention, queries of fewer columns; neighbouring columns rotate; YaRN that "
                      "scores grow by; experts of two groups in three; stored in bf16"),
    "deepseek_v3/uneven": (DeepseekV3Config, {
        "vocab_size": 83, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 5, "q_lora_rank": None,
        "kv_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 10,
        "rope_interleave": False, "attention_bias": True, "n_routed_experts": 5,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 19,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "max_position_embeddings": 64,
    }, 9, "float32", "sizes and experts that no rank count divides; queries of one product; halves rotate; "
                     "biases; two experts that all tokens pass"),
    "ministral3/base": (Ministral3Config, {
        "vocab_size": 92, "hidden_size": 32, "intermediate_size": 46, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
        "max_position_embeddings": 64, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4, "beta_fast": 2.0, "beta_slow": 0.5,
            "original_max_position_embeddings": 8},
    }, 12, "bfloat16", "queries that grow with their positions, in eight steps; YaRN; stored in bf16"),
    "ministral3/uneven": (Ministral3Config, {
        "vocab_size": 131, "hidden_size": 30, "intermediate_size": 43, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 64, "sliding_window": 20, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.0, "mscale": 1.0,
            "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 32},
    }, 13, "float32", "sizes that no rank count divides; queries grow behind the prompt; a window"),
    "ministral3/multimodal": (Mistral3Config, {
        "vocab_size": 90,
        "text_config": {
            "model_type": "ministral3", "vocab_size": 90, "hidden_size": 32,
            "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
            "rope_parameters": {
                "type": "yarn", "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
                "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 16}, **NO_SPECIAL},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "head_dim": 4,
            "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        "image_token_index": 89, "tie_word_embeddings": False,
    }, 11, "float32", "the text part of a mistral3 checkpoint"),
    "glm4_moe/base": (Glm4MoeConfig, {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "use_qk_norm": True,
        "attention_bias": True, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3,
        "topk_group": 2, "moe_intermediate_size": 20, "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 2, "max_position_embeddings": 64,
    }, 8, "bfloat16", "experts of two groups in three by sigmoids that a bias corrects, their weights "
                      "scaled; an expert that all tokens pass; the first layers dense; half of a head "
                      "rotates; norms of heads; stored in bf16"),
    "glm4_moe/uneven": (Glm4MoeConfig, {
        "vocab_size": 83, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 10, "n_routed_experts": 5,
        "num_experts_per_tok": 3, "moe_intermediate_size": 19, "n_shared_experts": 2,
        "norm_topk_prob": False, "max_position_embeddings": 64, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.6},
    }, 8, "float32", "sizes and experts that no rank count divides; all experts in one tensor; two that all "
                     "tokens pass; no groups; weights of experts not renormalised"),
    "gpt_oss/base": (GptOssConfig, {
        "vocab_size": 98, "hidden_size": 36, "intermediate_size": 22, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6,
        "swiglu_limit": 0.9, "max_position_embeddings": 64, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 150.0, "factor": 4.0, "truncate": False,
            "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.5},
    }, 9, "bfloat16", "sinks, windows in every second layer, YaRN that is not truncated; experts with "
                       "biases and a limit that many values meet; stored in bf16"),
    "gpt_oss/uneven": (GptOssConfig, {
        "vocab_size": 113, "hidden_size": 35, "intermediate_size": 13, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8,
        "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention"],
        "swiglu_alpha": 1.3, "swiglu_limit": 1.5, "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }, 9, "float32", "sizes and experts that no rank count divides; one KV head; layers by layer_types"),
    "qwen3_next/base": (Qwen3NextConfig, {
        "vocab_size": 88, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 6,
        "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4, "num_experts": 5,
        "num_experts_per_tok": 2, "moe_intermediate_size": 18,
        "shared_expert_intermediate_size": 22, "full_attention_interval": 3, "mlp_only_layers": [1],
        "max_position_embeddings": 64,
    }, 8, "bfloat16", "two layers of linear attention, two value heads for a key head, before one of full "
                       "attention with gates, of which a quarter of a head rotates; stored in bf16"),
    "qwen3_next/uneven": (Qwen3NextConfig, {
        "vocab_size": 83, "hidden_size": 30, "intermediate_size": 41, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12,
        "linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_key_head_dim": 5,
        "linear_value_head_dim": 7, "linear_conv_kernel_dim": 3, "num_experts": 3,
        "num_experts_per_tok": 2, "moe_intermediate_size": 19, "norm_topk_prob": False,
        "shared_expert_intermediate_size": 23, "mlp_only_layers": [1], "attention_bias": True,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                            "partial_rotary_factor": 0.5},
        "max_position_embeddings": 64,
    }, 8, "float32", "sizes that no rank count divides; three value heads for a key head; one KV head; "
                     "layers by layer_types; a dense one between; biases"),
    "qwen3_next/small": (Qwen3NextConfig, {
        "vocab_size": 61, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 12, "linear_conv_kernel_dim": 2, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 10, "full_attention_interval": 2,
        "mlp_only_layers": [0], "max_position_embeddings": 64,
    }, 12, "float32", "one value head for a key head; a convolution of two tokens; for gradients"),
}


OLD_SPELLING = ("llama/biases", "qwen2/dynamic", "mistral/base", "gpt_neox/odd")
EMBEDDINGS = ("embed_tokens", "wte", "wpe", "embed_in", "word_embeddings")


def is_norm(name):
    """input_layernorm, q_norm, model.norm; ln_1, ln_f."""
    return any(part.endswith("norm") or part.startswith("ln_") for part in name.split("."))


def randomise(model, seed, gain):
    """Random values for every parameter: norms around 1, biases around 0, weights by fan-in."""
    one = 0 if "Gemma" in type(model).__name__ else 1  # which adds it itself
    next_one = "Qwen3Next" in type(model).__name__  # which does so but in linear attention
    generator = torch.Generator().manual_seed(seed)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            if is_norm(name) and name.endswith("weight"):
                # Heads of Phi that are normed give flat scores: a text of them repeats itself.
                around = 0 if next_one and "linear_attn" not in name else one
                p.copy_((3 if "q_layernorm" in name else 1) * (around + 0.3 * noise))
            elif name.endswith("A_log"):
                p.copy_(noise - 2)  # so that some heads remember for long
            elif p.dim() == 1:
                p.copy_(0.3 * noise)
            elif any(word in name for word in EMBEDDINGS):
                # A tied head likes to repeat the last token: less so when embeddings are small.
                scale = math.sqrt(p.shape[1]) if one == 0 else 1  # Gemma multiplies by it
                p.copy_((0.3 if tied else 0.7) / scale * noise)
            else:
                # GPT-Neo does not scale its scores, so its q and k are smaller.
                soft = 0.5 if "attention.q_proj" in name or "attention.k_proj" in name else 1.0
                turned = isinstance(model, GPT2LMHeadModel) and "lm_head" not in name
                p.copy_(soft * gain * noise / math.sqrt(p.shape[0 if turned else -1]))
        for _, b in corrections(model):
            b.copy_(0.2 * torch.randn(b.shape, generator=generator))


def corrections(model):
    """Routers that correct their choices by a bias, and it: f32 in every model."""
    return [(m, m.e_score_correction_bias) for m in model.modules()
            if hasattr(m, "e_score_correction_bias")]


def auto_class(model_type):
    """Not all text parts of multimodal models are causal models to Transformers."""
    return AutoModelForImageTextToText if model_type == "mistral3" else AutoModelForCausalLM


def build(name, seed, gain):
    config_class, keys, _, dtype, _ = FIXTURES[name]
    config = config_class(**{**NO_SPECIAL, **keys})
    model = auto_class(config.model_type).from_config(config)
    randomise(model, seed, gain)
    biases = [(m, b.clone()) for m, b in corrections(model)]
    model = model.to(getattr(torch, dtype))
    for m, b in biases:
        m.e_score_correction_bias = b
    return model


def write_checkpoint(name, model, folder):
    """save_pretrained; llama/sharded in three files, some in the older spelling, mixtures of
    experts that are uneven with the tensors that Transformers 5 computes with."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    for limit in range(total // 3, total, 1024) if name == "llama/sharded" else [10 * total]:
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, max_shard_size=limit)
        files = [f for f in os.listdir(folder) if f.endswith(".safetensors")]
        if len(files) == (3 if name == "llama/sharded" else 1):
            break
    for f in files:
        os.chmod(os.path.join(folder, f), 0o644)
    if name in ("qwen3_moe/uneven", "mixtral/uneven", "qwen2_moe/uneven", "glm4_moe/uneven",
                "qwen3_next/uneven"):
        save_file(model.state_dict(), os.path.join(folder, "model.safetensors"), {"format": "pt"})
    if name in OLD_SPELLING:
        spell_as_version_4(os.path.join(folder, "config.json"))


def spell_as_version_4(path):
    """rope_parameters -> rope_theta and rope_scaling, dtype -> torch_dtype; loads the same."""
    before = AutoConfig.from_pretrained(path).to_dict()
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    rope = config.pop("rope_parameters")
    if config["model_type"] == "gpt_neox":
        config["rotary_emb_base"] = rope["rope_theta"]
        config["rotary_pct"] = rope["partial_rotary_factor"]
    else:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.44.0"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    after = AutoConfig.from_pretrained(path).to_dict()
    for config in (before, after):
        config.pop("transformers_version")
        config["rope_parameters"].pop("type", None)
    assert before == after, (before, after)


def load(folder, dtype):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    experts = {"experts_implementation": "eager"} if "num_experts_per_tok" in config else {}
    return auto_class(config["model_type"]).from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", **experts).eval()


def forward(model, prompt):
    """Logits [T, V], and what each router of a mixture of experts said: [(logits, indices)]."""
    said = []
    hooks = [m.register_forward_hook(lambda m, _, out: said.extend(choices(m, out[0], out[2])))
             for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]
    logits = model(prompt[None]).logits[0]
    for h in hooks:
        h.remove()
    return logits, said


def choices(router, logits, chosen):
    """What a router chooses by and what it chose: logits and experts; of one that corrects scores,
    these, of the groups that it chose before, and the groups."""
    if not hasattr(router, "e_score_correction_bias"):
        return [(logits, chosen)]
    scores = logits.sigmoid() + router.e_score_correction_bias
    groups = scores.view(len(scores), router.num_group, -1)
    sums = groups.topk(2).values.sum(-1)
    best = sums.topk(router.topk_group).indices
    kept = torch.zeros_like(sums).scatter(1, best, 1).bool()[..., None].expand_as(groups)
    scores = groups.masked_fill(~kept, scores.min() - 1).flatten(1)
    return [(scores, chosen)] + ([(sums, best)] if router.topk_group < router.num_group else [])


def routing_gap(model, half, prompt):
    """The narrowest choice of experts, over the size of the logits it is made from; 0 if bfloat16
    chooses others. Rounding that changes a choice would change everything after it."""
    said, halves = forward(model, prompt)[1], forward(half, prompt)[1]
    gaps = [1.0]
    for (logits, chosen), (_, others) in zip(said, halves):
        k = chosen.shape[1]
        best = logits.sort(descending=True).values
        gaps.append(((best[:, k - 1] - best[:, k]).min() / logits.pow(2).mean().sqrt()).item())
        if not torch.equal(chosen.sort().values, others.sort().values):
            return 0.0
    return min(gaps)


def off_by(half, model, prompts):
    """Of each prompt, the rms of what bfloat16 makes of the logits against float32."""
    return (half(prompts).logits.float() - model(prompts).logits).pow(2).mean((1, 2)).sqrt()


def is_lucky(half, model, prompt, vocab):
    """Whether bfloat16 comes nearer here than it does on average: ours would be held against that."""
    others = torch.randint(vocab, (32, len(prompt)), generator=torch.Generator().manual_seed(7))
    return (off_by(half, model, prompt[None]) < off_by(half, model, others).mean()).item()


def is_steady(model, prompt, logits):
    """Whether other roundings at the beginning leave the logits where they are."""
    table = model.get_input_embeddings().weight
    before, worst = table.clone(), 0.0
    for seed in range(6):
        steps = torch.randint(-1, 2, table.shape, generator=torch.Generator().manual_seed(seed))
        table.copy_(before * (1 + 2**-23 * steps))
        worst = max(worst, (model(prompt[None]).logits[0] - logits).abs().max().item())
    table.copy_(before)
    return worst <= 5e-6 * logits.abs().max().item()


def generate(model, prompt, **keys):
    """New tokens, and what else generate() was asked to return."""
    out = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]),
                         do_sample=False, return_dict_in_generate=True, **keys)
    return out.sequences[:, len(prompt):], out


def beams(model, prompt, processors=()):
    return generate(model, prompt, num_beams=BEAMS, num_return_sequences=BEAMS,
                    max_new_tokens=BEAM_TOKENS, output_scores=True,
                    logits_processor=LogitsProcessorList(processors))


class Noise(LogitsProcessor):
    def __init__(self, size, seed):
        self.size, self.generator = size, torch.Generator().manual_seed(seed)

    def __call__(self, input_ids, scores):
        return scores + self.size * torch.randn(scores.shape, generator=self.generator)


@torch.no_grad()
def expect(folder, prompt, fair=False, steady=False):
    """The expected tensors, and the numbers that say how safe they are to compare with."""
    model = load(folder, torch.float32)
    logits = model(prompt[None]).logits[0]
    greedy, out = generate(model, prompt, max_new_tokens=NEW_TOKENS, output_logits=True)
    steps = torch.cat(out.logits)
    largest = max(steps.abs().max().item(), logits.abs().max().item())
    two = steps.topk(2).values
    safety = {
        "margin": (two[:, 0] - two[:, 1]).min().item() / largest,
        "distinct": len(set(greedy[0].tolist())),
        "largest": largest,
    }
    tensors = {"prompt": prompt, "logits_f32": logits, "greedy_f32": greedy[0].contiguous()}
    if safety["margin"] <= MIN_MARGIN or safety["distinct"] < MIN_DISTINCT:
        return tensors, safety, "margin or variety"
    exact, half = (load(folder, t) for t in (torch.float64, torch.bfloat16))
    if routing_gap(model, half, prompt) < MIN_GAP:
        return tensors, safety, "routing"
    if steady and not is_steady(model, prompt, logits):
        return tensors, safety, "steadiness"
    if fair and is_lucky(half, model, prompt, logits.shape[1] - 3):
        return tensors, safety, "bfloat16"

    logits_bf16 = half(prompt[None]).logits[0].float()
    tensors["logits_bf16"] = logits_bf16
    safety["bf16"] = ((logits_bf16 - logits).pow(2).mean() / logits.pow(2).mean()).sqrt().item()
    exact_logits = exact(prompt[None]).logits[0]
    assert torch.isfinite(exact_logits).all() and exact_logits.dtype == torch.float64
    safety["f32"] = (exact_logits - logits).abs().max().item() / largest
    found, out = beams(model, prompt)
    tensors["beams_f32"] = found.contiguous()
    tensors["beam_scores_f32"] = out.sequences_scores.contiguous()
    others = [beams(exact, prompt)[0]]
    others += [beams(model, prompt, [Noise(1e-4 * largest, s)])[0] for s in range(4)]
    if not all(torch.equal(found, o) for o in others):
        return tensors, safety, "beams"
    if not torch.equal(greedy, generate(exact, prompt, max_new_tokens=NEW_TOKENS)[0]):
        return tensors, safety, "float64 tokens"
    if safety["f32"] > 2e-6:
        return tensors, safety, "float64 logits"
    return tensors, safety, None


def make_prompt(name, seed):
    _, keys, length, _, _ = FIXTURES[name]
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(keys["vocab_size"], (length,), generator=generator)


def is_later(name):
    return list(FIXTURES).index(name) > list(FIXTURES).index(WIDE_SEARCH)


def must_be_steady(name):
    return list(FIXTURES).index(name) >= list(FIXTURES).index(STEADY)


def search(name):
    """(margin, seed, gain) of the best candidate."""
    best, dropped, few = None, {}, is_later(name)
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            if few and best and seed > FEW_SEEDS:
                break
            for gain in GAINS:
                build(name, seed, gain).save_pretrained(folder)
                _, safety, fault = expect(folder, make_prompt(name, seed), few,
                                         must_be_steady(name))
                if fault:
                    dropped[fault] = dropped.get(fault, 0) + 1
                elif best is None or safety["margin"] > best[0]:
                    best = (safety["margin"], seed, gain)
    assert best, f"{name}: no candidate holds; dropped {dropped}"
    print(f"{name}: seed {best[1]}, gain {best[2]}; dropped {dropped}", flush=True)
    return best


def make(name, root):
    """Search, write, read back what was written, check, and give the line for the README."""
    _, seed, gain = search(name)
    folder = os.path.join(root, name)
    prompt = make_prompt(name, seed)
    write_checkpoint(name, build(name, seed, gain), folder)
    tensors, safety, fault = expect(folder, prompt, is_later(name), must_be_steady(name))
    assert fault is None, f"{name}: {fault}"
    assert tensors["logits_f32"].dtype == tensors["logits_bf16"].dtype == torch.float32
    assert tensors["greedy_f32"].shape == (NEW_TOKENS,)
    assert tensors["beams_f32"].shape == (BEAMS, BEAM_TOKENS)
    save_file(tensors, os.path.join(folder, "expected.safetensors"))
    os.chmod(os.path.join(folder, "expected.safetensors"), 0o644)
    back = load_file(os.path.join(folder, "expected.safetensors"))
    assert all(torch.equal(back[k], v) for k, v in tensors.items())
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    assert size < 1_100_000, f"{name}: {size} bytes"
    line = (f"| {name} | {FIXTURES[name][4]} | {safety['margin']:.1e} | {safety['distinct']} "
            f"| {safety['bf16']:.1e} | {size // 1000} |")
    print(line, flush=True)
    return line


README = """# Golden fixtures

Tiny random checkpoints and what Hugging Face Transformers computes with them, made by
`tools/make_golden.py` with transformers {transformers} and torch {torch} (CPU, eager attention);
its first lines say what is in `expected.safetensors` and which bounds every fixture holds.
`tokenizer/` is made by `tools/make_tokenizer_golden.py` and `tools/make_tokenizer_sweep.py` and has its own page.

Margin: smallest top-2 margin of the 40 greedy steps, over the largest |logit|. Distinct: different
tokens among the 40. bf16: RMS of (logits_bf16 - logits_f32) over RMS of logits_f32.

| fixture | what it is for | margin | distinct | bf16 | kB |
|---|---|---|---|---|---|
{lines}
"""


def arguments(description, known, rest="all"):
    """Names of fixtures and their folder, and a quiet library on one thread."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"fixtures to make; {rest} if none")
    parser.add_argument("--out", default="tests/golden")
    args = parser.parse_args()
    unknown = set(args.names) - set(known)
    if unknown:
        sys.exit(f"no such fixture: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    return args


def main():
    args = arguments(__doc__, FIXTURES, "all, and the README,")
    lines = [make(name, args.out) for name in args.names or FIXTURES]
    if not args.names:
        with open(os.path.join(args.out, "README.md"), "w", encoding="utf-8") as f:
            f.write(README.format(lines="\n".join(lines), torch=torch.__version__.split("+")[0],
                                  transformers=transformers.__version__))


if __name__ == "__main__":
    main()
