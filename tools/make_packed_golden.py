#!/usr/bin/env python3
"""Make tests/golden/packed/<name>/: tiny checkpoints whose linear layers are packed.

Each folder is a Hugging Face folder (config.json with its quantization_config, model.safetensors)
with one file more, expected.safetensors, from the weights that compressed-tensors makes of the
packed ones again, computed with attn_implementation="eager" in float32 on the CPU:

    prompt       I64 [T]
    logits_f32   F32 [T, V]

compressed-tensors packs what has its name, and Transformers loads these folders, but those with zero points and with
rounded activations: its logits have to be those that are written. "transformers", "auto_gptq" and "autoawq" are packed and unpacked by those packages' own functions on the
CPU (their models want a GPU): Fp8Quantize and Fp8Dequantize, QuantLinear of qlinear_cuda_old, WQLinear_GEMM. "fp8",
"gptq" and "awq" are packed here, by the formulas of their layouts, with what packages do not make: zero points at
both ends, blocks that end short, outputs that 32 does not divide.

Experts are packed one by one, under the names that Transformers writes them with and tools pack them under; those of
"mxfp4" all together, as gpt-oss has them, and unpacked by Transformers' convert_moe_packed_tensors.

Run, from the repository root (seconds; a name makes that fixture alone):

    python3 tools/make_packed_golden.py [llama_int4 ...]

--check FOLDER compares a folder of packed weights that dtensor has saved with another, --like, that
it was loaded from: both unpacked by compressed-tensors, layer by layer.

Needs torch, transformers (5.23), safetensors and compressed-tensors (0.20); auto-gptq (0.7.1) and autoawq (0.2.9)
without their dependencies (pip install --no-deps) for what is packed by them.
"""

import argparse
import importlib
import importlib.util
import json
import os
import re
import shutil
import sys
import types

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, LlamaConfig, MixtralConfig, Phi3Config,
                          Qwen3MoeConfig)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

LLAMA = (LlamaConfig, {
    "vocab_size": 120, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "rms_norm_eps": 1e-5})
SMALL = (LlamaConfig, {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "rms_norm_eps": 1e-5})
PHI3 = (Phi3Config, {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "pad_token_id": 0})

QWEN3_MOE = (Qwen3MoeConfig, {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [1], "max_position_embeddings": 64, "tie_word_embeddings": False})
MIXTRAL = (MixtralConfig, {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 5,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "tie_word_embeddings": False})

GPT_OSS = (GptOssConfig, {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 5,
    "num_experts_per_tok": 2, "sliding_window": 6, "swiglu_limit": 1.5,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})

DEEPSEEK_V3 = (DeepseekV3Config, {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "moe_intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32,
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})

# name: model, its dtype, format, what is said of weights, what is ignored
FIXTURES = {
    "llama_int4": (LLAMA, torch.float32, "pack-quantized",
                   {"num_bits": 4, "strategy": "group", "group_size": 32}, ["lm_head"]),
    "llama_int4_zeros": (LLAMA, torch.float32, "pack-quantized",
                         {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False},
                         ["lm_head", r"re:model\.layers\.1\..*"]),
    "llama_int8_channel": (LLAMA, torch.bfloat16, "pack-quantized",
                           {"num_bits": 8, "strategy": "channel"}, ["lm_head"]),
    "llama_w8a8": (LLAMA, torch.float32, "int-quantized",
                   {"num_bits": 8, "strategy": "channel"}, ["re:.*head$", "re:.*(k|v)_proj"]),
    "phi3_int4_zeros": (PHI3, torch.float32, "pack-quantized",
                        {"num_bits": 4, "strategy": "channel", "symmetric": False}, []),
    "llama_fp8_tensor": (LLAMA, torch.float32, "float-quantized",
                         {"num_bits": 8, "type": "float", "strategy": "tensor"}, ["lm_head"]),
    "llama_fp8_channel": (LLAMA, torch.float32, "float-quantized",
                          {"num_bits": 8, "type": "float", "strategy": "channel"}, ["lm_head"]),
    "llama_fp8_blocks": (LLAMA, torch.float32, "fp8",
                         {"weight_block_size": [48, 64], "activation_scheme": "dynamic",
                          "fmt": "e4m3"}, ["model.layers.1.mlp"]),
    "llama_gptq": (LLAMA, torch.float32, "gptq",
                   {"bits": 4, "group_size": 32, "desc_act": False, "sym": False,
                    "checkpoint_format": "gptq"}, []),
    "llama_awq": (LLAMA, torch.float32, "awq",
                  {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
                  ["model.layers.1.mlp"]),
    "small_fp8_transformers": (SMALL, torch.float32, "transformers",
                               {"weight_block_size": [16, 32], "activation_scheme": "dynamic"}, []),
    "small_gptq4_auto_gptq": (SMALL, torch.float32, "auto_gptq",
                              {"bits": 4, "group_size": 32, "desc_act": False, "sym": False}, []),
    "small_gptq8_auto_gptq": (SMALL, torch.float32, "auto_gptq",
                              {"bits": 8, "group_size": 16, "desc_act": False, "sym": True}, []),
    "small_awq_autoawq": (SMALL, torch.float32, "autoawq",
                          {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
                          ["model.layers.0.mlp"]),
    "qwen3_moe_int4": (QWEN3_MOE, torch.float32, "pack-quantized",
                       {"num_bits": 4, "strategy": "group", "group_size": 16},
                       ["lm_head", r"re:.*mlp\.gate$"]),
    "qwen3_moe_w8a8": (QWEN3_MOE, torch.float32, "int-quantized",
                       {"num_bits": 8, "strategy": "channel"}, ["lm_head", r"re:.*mlp\.gate$"]),
    "qwen3_moe_fp8_blocks": (QWEN3_MOE, torch.float32, "fp8",
                             {"weight_block_size": [32, 32], "activation_scheme": "dynamic",
                              "fmt": "e4m3"}, ["lm_head", "model.layers.0.mlp.gate"]),
    "qwen3_moe_gptq": (QWEN3_MOE, torch.float32, "gptq",
                       {"bits": 4, "group_size": 16, "desc_act": False, "sym": False,
                        "checkpoint_format": "gptq"}, []),
    "mixtral_int4_zeros": (MIXTRAL, torch.float32, "pack-quantized",
                           {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
                           ["lm_head", r"re:.*block_sparse_moe\.gate$"]),
    "mixtral_awq": (MIXTRAL, torch.float32, "awq",
                    {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, ["gate"]),
    "deepseek_v3_fp8_blocks": (DEEPSEEK_V3, torch.float32, "fp8",
                               {"weight_block_size": [48, 32], "activation_scheme": "dynamic",
                                "fmt": "e4m3"}, []),
    "gpt_oss_mxfp4": (GPT_OSS, torch.bfloat16, "mxfp4", {},
                      ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                       "model.embed_tokens", "lm_head"]),
}
OWN = {"fp8": "fp8", "gptq": "gptq", "awq": "awq", "mxfp4": "mxfp4",
       "transformers": "fp8", "auto_gptq": "gptq", "autoawq": "awq"} # and its quant_method
TOKENS = 11


# --- what is packed ----------------------------------------------------------------------------


def upstream(name):
    """A name of Transformers' modules as its files have it."""
    return name.replace(".mlp.", ".block_sparse_moe.") if UPSTREAM["mixtral"] else name


UPSTREAM = {"mixtral": False} # whose names


def linears(model):
    """Names and weights of all linear layers, and of experts, each of them on its own."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            yield upstream(name), module.weight.data
        elif hasattr(module, "gate_up_proj") and isinstance(module.gate_up_proj, torch.nn.Parameter):
            parts = ("w1", "w3", "w2") if UPSTREAM["mixtral"] else ("gate_proj", "up_proj", "down_proj")
            for e in range(module.gate_up_proj.shape[0]):
                for part, w in zip(parts, (*module.gate_up_proj.data[e].chunk(2), module.down_proj.data[e])):
                    yield f"{upstream(name)}.{e}.{part}", w


def plain_tensors(model):
    """All tensors of a model by their names in files."""
    tensors = {upstream(k): v.clone() for k, v in model.state_dict().items() if ".experts." not in k}
    tensors.update({name + ".weight": w.clone() for name, w in linears(model)})
    return tensors


# --- formats that are packed here --------------------------------------------------------------


def pack_fp8(name, weight, said):
    rows, columns = said["weight_block_size"]
    out, inputs = weight.shape
    scale = torch.empty(-(-out // rows), -(-inputs // columns))
    codes, values = torch.empty_like(weight).to(torch.float8_e4m3fn), torch.empty_like(weight)
    for r in range(scale.shape[0]):
        for c in range(scale.shape[1]):
            at = (slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns))
            scale[r, c] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scale[r, c]).to(torch.float8_e4m3fn)
            values[at] = codes[at].float() * scale[r, c]
    return {name + ".weight": codes, name + ".weight_scale_inv": scale}, values


def integers(weight, group):
    """Codes, zero points and scales of 4 bits; some groups begin at zero, some end there."""
    out, inputs = weight.shape
    parts = weight.reshape(out, inputs // group, group).clone()
    parts[0::5, 0] = parts[0::5, 0].abs()
    parts[1::5, 0] = -parts[1::5, 0].abs()
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).half().float()
    zero = (-low / scale).round().clamp(0, 15)
    codes = (parts / scale[..., None] + zero[..., None]).round().clamp(0, 15)
    values = ((codes - zero[..., None]) * scale[..., None]).reshape(out, inputs)
    return codes.reshape(out, inputs).int(), zero.int(), scale.half(), values


def words(codes, places):
    """Eight codes of the last axis in each word of 32 bits, code i at nibble places[i]."""
    parts = codes.reshape(*codes.shape[:-1], -1, 8).long()
    word = sum(parts[..., i] << 4 * places[i] for i in range(8))
    return torch.where(word >= 1 << 31, word - (1 << 32), word).int().contiguous()


def pack_gptq(name, weight, said):
    codes, zero, scale, values = integers(weight, said["group_size"])
    plain = list(range(8))
    return {
        name + ".qweight": words(codes, plain).t().contiguous(),
        name + ".qzeros": words(((zero - 1) & 15).t().contiguous(), plain),
        name + ".scales": scale.t().contiguous(),
        name + ".g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // said["group_size"],
    }, values


def pack_awq(name, weight, said):
    codes, zero, scale, values = integers(weight, said["group_size"])
    places = [0, 4, 1, 5, 2, 6, 3, 7]
    return {
        name + ".qweight": words(codes.t().contiguous(), places),
        name + ".qzeros": words(zero.t().contiguous(), places),
        name + ".scales": scale.t().contiguous(),
    }, values


# --- formats that packages pack ----------------------------------------------------------------


def alone(name):
    """A module of a package whose __init__ wants what is not there."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        parent = ".".join(parts[:i])
        if parent in sys.modules:
            continue
        module = types.ModuleType(parent)
        if i == 1:
            module.__path__ = list(importlib.util.find_spec(parent).submodule_search_locations)
        else:
            above = sys.modules[".".join(parts[:i - 1])]
            module.__path__ = [os.path.join(p, parts[i - 1]) for p in above.__path__]
        sys.modules[parent] = module
    return importlib.import_module(name)


def pack_transformers(name, weight, said):
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
    config = FineGrainedFP8Config(weight_block_size=tuple(said["weight_block_size"]))
    quantizer = types.SimpleNamespace(quantization_config=config)
    packed = Fp8Quantize(quantizer).convert({name + ".weight": weight})
    codes, scale = packed[name + ".weight"], packed[name + ".weight_scale_inv"]
    return packed, Fp8Dequantize(quantizer)._dequantize_one(codes, scale)


def parameters(weight, said):
    """Scales and zero points [outputs, groups] of bits of codes, as a quantizer would find them."""
    parts = weight.reshape(weight.shape[0], -1, said["group_size"])
    low, high, last = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0), 2 ** said["bits"] - 1
    if said.get("sym"):
        scale = 2 * torch.maximum(-low, high) / last
        return scale, torch.full_like(scale, (last + 1) // 2)
    scale = ((high - low) / last).half().float()
    return scale, (-low / scale).round().clamp(1, last) # stored less one, or as it is


def rounded(weight, scale, zero, said):
    """What codes will stand for: functions of packages round, but do not clamp."""
    parts = weight.reshape(weight.shape[0], -1, said["group_size"])
    codes = (parts / scale[..., None] + zero[..., None]).round().clamp(0, 2 ** said["bits"] - 1)
    return ((codes - zero[..., None]) * scale[..., None]).reshape(weight.shape)


def linear_of(weight):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight
    return linear


def pack_auto_gptq(name, weight, said):
    gptq = alone("auto_gptq.nn_modules.qlinear.qlinear_cuda_old")
    scale, zero = parameters(weight, said)
    module = gptq.QuantLinear(said["bits"], said["group_size"], weight.shape[1], weight.shape[0], False)
    module.pack(linear_of(rounded(weight, scale, zero, said)), scale.clone(), zero.clone(), None)
    order = torch.arange(weight.shape[1], dtype=torch.int32) // said["group_size"]
    state = {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales.half(),
             "g_idx": order}
    module.scales = state["scales"].float()
    values = module(torch.eye(weight.shape[1])).t().contiguous()
    return {f"{name}.{k}": v for k, v in state.items()}, values


def pack_autoawq(name, weight, said):
    gemm = alone("awq.modules.linear.gemm")
    scale, zero = parameters(weight, said)
    module = gemm.WQLinear_GEMM.from_linear(
        linear_of(rounded(weight, scale, zero, said)), said["bits"], said["group_size"],
        scales=scale.t().contiguous(), zeros=zero.t().contiguous())
    values = gemm.dequantize_gemm(module.qweight, module.qzeros, module.scales.float(),
                                  said["bits"], said["group_size"])
    return {f"{name}.{k}": getattr(module, k) for k in ("qweight", "qzeros", "scales")}, values.t()


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def pack_mxfp4(model):
    """Experts as blocks [E, out, in / 32, 16] and scales [E, out, in / 32]; one block of each weight is
    zeros, one has the least scale, and in others the largest code is met from above."""
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    for name in [k for k in tensors if k.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        parts = tensors.pop(name).float().transpose(1, 2).unflatten(2, (-1, 32)).clone()
        parts[0, 0, 0] = 0
        parts[1, 1, 0] *= 2.0 ** -130
        scales = parts.abs().amax(-1).clamp(min=2.0 ** -125).log2().floor() - 2
        codes = (parts.abs() / scales.exp2()[..., None])[..., None].sub(FP4).abs().argmin(-1)
        codes += 8 * (parts < 0)
        tensors[name + "_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        tensors[name + "_scales"] = (scales + 127).to(torch.uint8)
        values = convert_moe_packed_tensors(tensors[name + "_blocks"], tensors[name + "_scales"])
        assert torch.isfinite(values).all()
        model.get_parameter(name).data.copy_(values)
    return tensors


def pack_own(model, method, said, ignore):
    if method == "mxfp4":
        return pack_mxfp4(model)
    tensors = plain_tensors(model)
    packer = globals()["pack_" + method]
    for name, weight in linears(model):
        if any(name == i or name.startswith(i + ".") for i in ignore + ["lm_head"]):
            continue
        packed, values = packer(name, tensors.pop(name + ".weight"), said)
        tensors.update({k: v.contiguous() for k, v in packed.items()})
        weight.copy_(values)
    return tensors


# --- formats of compressed-tensors -------------------------------------------------------------


def is_packed(name, ignore):
    return not any(re.match(i[3:], name) if i.startswith("re:") else i == name for i in ignore)


def qparams(weight, args):
    rows, columns = weight.shape
    if args.strategy == "tensor":
        return calculate_qparams(weight.amin(), weight.amax(), args)
    group = args.group_size or columns
    parts = weight.reshape(rows, columns // group, group)
    return calculate_qparams(parts.amin(-1), parts.amax(-1), args)


def pack(model, form, args, ignore):
    """Packed tensors by name; the model is left with what they stand for."""
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors = plain_tensors(model)
    for name, values in linears(model):
        if not is_packed(name, ignore):
            continue
        weight = tensors.pop(name + ".weight")
        scale, zero = qparams(weight, args)
        state = {"weight": weight, "weight_scale": scale.to(weight.dtype), "weight_zero_point": zero}
        packed = compressor.compress(state, scheme)
        for key, value in packed.items():
            tensors[f"{name}.{key}"] = value.contiguous()
        values.copy_(compressor.decompress(dict(packed), scheme)["weight"])
    return tensors


def make(name, root):
    (kind, keys), dtype, form, said, ignore = FIXTURES[name]
    folder = os.path.join(root, name)
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(17)
    UPSTREAM["mixtral"] = kind is MixtralConfig
    config = kind(**keys, bos_token_id=None, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype).eval()
    with torch.no_grad():
        for _, p in model.named_parameters():
            p.copy_(p + 1e-1 * torch.randn_like(p) if p.dim() > 1 else p + 0.1 * torch.randn_like(p))
        for buffer, b in model.named_buffers():
            if "correction" in buffer:
                b.copy_(0.2 * torch.randn_like(b))
    args = None if form in OWN else QuantizationArgs(**{"type": "int", **said})
    tensors = pack_own(model, form, said, ignore) if form in OWN else pack(model, form, args, ignore)
    model.save_pretrained(folder)
    for file in os.listdir(folder):
        if file != "config.json":
            os.remove(os.path.join(folder, file))
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        written = json.load(f)
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    written["quantization_config"] = {"quant_method": OWN.get(form), **said}
    if ignore and form in OWN:
        written["quantization_config"]["modules_to_not_convert"] = ignore
    if form not in OWN:
        written["quantization_config"] = {
        "config_groups": {"group_0": {
            "input_activations": activations if form == "int-quantized" else None,
            "output_activations": None, "targets": ["Linear"],
            "weights": json.loads(args.model_dump_json())}},
        "format": form, "global_compression_ratio": None, "ignore": ignore, "kv_cache_scheme": None,
        "quant_method": "compressed-tensors", "quantization_status": "compressed"}
    with open(path, "w") as f:
        json.dump(written, f, indent=2, sort_keys=True)
        f.write("\n")
    prompt = torch.randint(0, keys["vocab_size"], (TOKENS,))
    exact = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    exact.load_state_dict(model.float().state_dict()) # rotations as f32 has them
    with torch.no_grad():
        logits = exact(prompt[None]).logits[0]
    # int-quantized rounds activations; zero points are not loaded as compressed-tensors packs them
    # nor experts at all, which are one tensor there
    moe = kind in (MixtralConfig, Qwen3MoeConfig)
    if form in ("transformers", "mxfp4") or form not in OWN and form != "int-quantized" and args.symmetric and not moe:
        other = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype)
        with torch.no_grad():
            off = (other(prompt[None]).logits[0].float() - logits).abs().max()
        assert off <= (1e-5 if dtype == torch.float32 else 0.02) * logits.abs().max(), (name, off)
    save_file({"prompt": prompt, "logits_f32": logits}, os.path.join(folder, "expected.safetensors"))
    print(name, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes")


# --- folders that dtensor has saved ------------------------------------------------------------


def unpacked(folder):
    with open(os.path.join(folder, "config.json")) as f:
        said = json.load(f)["quantization_config"]
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    result = {}
    for name in {n.rsplit(".", 1)[0] for n in tensors if n.endswith(".weight_scale")}:
        for group in said["config_groups"].values():
            if any(t in ("Linear", name) or t.startswith("re:") and re.match(t[3:], name)
                   for t in group["targets"]):
                break
        args = QuantizationArgs(**group["weights"])
        compressor = BaseCompressor.get_value_from_registry(group.get("format") or said["format"])
        state = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        result[name] = compressor.decompress(state, scheme)["weight"]
    return result


def check(folder, like):
    one, other = unpacked(folder), unpacked(like)
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name
    print(f"{folder}: {len(one)} layers stand for the weights of {like}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check")
    parser.add_argument("--like")
    args = parser.parse_args()
    if args.check:
        check(args.check, args.like)
        return
    for name in args.names or FIXTURES:
        make(name, os.path.join("tests", "golden", "packed"))


if __name__ == "__main__":
    sys.exit(main())
