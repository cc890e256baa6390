#!/usr/bin/env python3
"""Make tests/golden/generation/: what Transformers' processors and its generate() do.

processors.json lists cases: keys of a generation_config.json, "step" new tokens that have been
generated, whether beams are searched. processors.safetensors holds, for all of them,

    scores        F32 [R, V]   what goes in: logits of R rows
    history       I64 [R, L]   the tokens of each row, the last `step` of them generated
    <case name>   F32 [R, V]   what comes out of the list that generate() builds

sampling.json and sampling.safetensors hold the same for the logits of each checkpoint of
tests/golden: its tensors are called <checkpoint>.scores and so on, scores being what Transformers
computes at the last R places of the prompt, and history the whole prompt in each row.

texts.json and texts.safetensors hold runs of generate() on the checkpoints: batches with padding on
the left, penalties, several end tokens; and four beams that repeat no four tokens on all of them.

Run, from the repository root (two minutes): python3 tools/make_generation_golden.py
Needs torch, transformers and safetensors.
"""

import json
import os

import torch
import transformers
from make_golden import FIXTURES
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

ROWS, VOCAB, LENGTH = 3, 101, 24
ROOT = "tests/golden"

# name: keys of the configuration, new tokens so far, beam search.
CASES = {
    "temperature": ({"do_sample": True, "temperature": 0.7, "top_k": 0}, 4, False),
    "top_k": ({"do_sample": True, "top_k": 7}, 4, False),
    "top_k_all": ({"do_sample": True, "top_k": 500}, 4, False),
    "top_p": ({"do_sample": True, "top_k": 0, "top_p": 0.8}, 4, False),
    "top_p_small": ({"do_sample": True, "top_k": 0, "top_p": 0.01}, 4, False),
    "min_p": ({"do_sample": True, "top_k": 0, "min_p": 0.1}, 4, False),
    "typical_p": ({"do_sample": True, "top_k": 0, "typical_p": 0.6}, 4, False),
    "typical_p_wide": ({"do_sample": True, "top_k": 0, "typical_p": 0.97}, 4, False),
    "epsilon_cutoff": ({"do_sample": True, "top_k": 0, "epsilon_cutoff": 0.01}, 4, False),
    "eta_cutoff": ({"do_sample": True, "top_k": 0, "eta_cutoff": 0.02}, 4, False),
    "renormalize_logits": ({"renormalize_logits": True}, 4, False),
    "repetition_penalty": ({"repetition_penalty": 1.3}, 4, False),
    "repetition_reward": ({"repetition_penalty": 0.8}, 4, False),
    "no_repeat_1gram": ({"no_repeat_ngram_size": 1}, 4, False),
    "no_repeat_2gram": ({"no_repeat_ngram_size": 2}, 4, False),
    "no_repeat_3gram": ({"no_repeat_ngram_size": 3}, 4, False),
    "bad_words_ids": ({"bad_words_ids": [[5], [98], [1, 2], [3, 1, 2], [7, 7], [11]],
                       "eos_token_id": [11, 12]}, 4, False),
    "sequence_bias": ({"sequence_bias": [[[5], 2.5], [[98], -3.0], [[1, 2], 4.0], [[3, 1, 2], -1.25],
                                         [[7, 7], -100.0], [[0], 0.5]]}, 4, False),
    "sequence_bias_penalised": ({"sequence_bias": [[[5], -6.0], [[3, 1, 40], 7.5]],
                                 "repetition_penalty": 1.3}, 4, False),
    "min_length": ({"min_length": LENGTH + 1, "eos_token_id": [3, 50]}, 4, False),
    "min_length_reached": ({"min_length": LENGTH, "eos_token_id": [3, 50]}, 4, False),
    "min_new_tokens": ({"min_new_tokens": 5, "eos_token_id": 3}, 4, False),
    "min_new_tokens_reached": ({"min_new_tokens": 4, "eos_token_id": 3}, 4, False),
    "forced_eos_token_id": ({"forced_eos_token_id": 9, "max_new_tokens": 5}, 4, False),
    "forced_eos_later": ({"forced_eos_token_id": 9, "max_new_tokens": 6}, 4, False),
    "suppress_tokens": ({"suppress_tokens": [0, 33, 34, 100]}, 4, False),
    "begin_suppress_tokens": ({"begin_suppress_tokens": [0, 33, 100]}, 0, False),
    "begin_suppress_later": ({"begin_suppress_tokens": [0, 33, 100]}, 1, False),
    "remove_invalid_values": ({"remove_invalid_values": True, "suppress_tokens": [4]}, 4, False),
    "everything": ({"do_sample": True, "temperature": 1.4, "top_k": 40, "top_p": 0.9,
                    "min_p": 0.02, "typical_p": 0.95, "repetition_penalty": 1.2,
                    "no_repeat_ngram_size": 2, "bad_words_ids": [[5], [1, 2]],
                    "suppress_tokens": [77], "min_new_tokens": 9, "eos_token_id": [3, 50],
                    "renormalize_logits": True}, 4, False),
    "beams_top_p": ({"do_sample": True, "top_k": 0, "top_p": 0.01, "num_beams": 3,
                     "eos_token_id": [3, 50, 51]}, 4, True),
    "beams_min_p": ({"do_sample": True, "top_k": 1, "min_p": 0.99, "num_beams": 3,
                     "eos_token_id": 3}, 4, True),
    "beams_typical": ({"do_sample": True, "top_k": 0, "typical_p": 0.01, "num_beams": 3}, 4, True),
}


def processors(model, config, n_prompt):
    """The list as generate() builds it."""
    settings, _ = model._prepare_generation_config(GenerationConfig(**config))
    unset = GenerationConfig(**config)
    settings = model._prepare_generated_length(
        generation_config=settings, has_default_max_length=unset.max_length is None,
        has_default_min_length=unset.min_length is None, model_input_name="input_ids",
        input_ids_length=n_prompt, inputs_tensor=torch.zeros(ROWS, n_prompt))
    model._prepare_special_tokens(settings, True, device="cpu")
    return model._get_logits_processor(settings, input_ids_seq_length=n_prompt, device="cpu",
                                       model_kwargs={})


def save(folder, name, tensors, cases):
    save_file(tensors, os.path.join(folder, f"{name}.safetensors"))
    with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f, indent=1)
        f.write("\n")


def make_processors(model, folder):
    generator = torch.Generator().manual_seed(7)
    scores = 2.5 * torch.randn(ROWS, VOCAB, generator=generator)
    history = torch.randint(0, 12, (ROWS, LENGTH), generator=generator)
    history[0, -2:] = torch.tensor([3, 1])
    history[1, -1] = 7
    scores[0, 17] = scores[0, 18] = 1.5  # a tie
    tensors, cases = {"scores": scores, "history": history}, []
    for name, (config, step, beams) in CASES.items():
        out = processors(model, config, LENGTH - step)(history, scores.clone())
        assert (out != scores).any() or name.endswith(("_reached", "_later", "_all")), name
        tensors[name] = out.contiguous()
        cases.append({"name": name, "step": step, "beams": beams, "config": config})
    save(folder, "processors", tensors, {"cases": cases})


# What is drawn from on each checkpoint; a parameter stays away from what rounding decides.
SAMPLING = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
    "typical_p": {"typical_p": 0.6},
    "epsilon_cutoff": {"epsilon_cutoff": 0.02},
    "eta_cutoff": {"eta_cutoff": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "everything": {"temperature": 1.4, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95,
                   "repetition_penalty": 1.2, "no_repeat_ngram_size": 1,
                   "renormalize_logits": True},
}


def make_sampling(model, folder):
    tensors = {}
    cases = [{"name": name, "step": 0, "beams": False,
              "config": {"do_sample": True, "top_k": 0, **keys}} for name, keys in SAMPLING.items()]
    for checkpoint in FIXTURES:
        expected = load_file(os.path.join(ROOT, checkpoint, "expected.safetensors"))
        scores = expected["logits_f32"][-ROWS:].contiguous()
        history = expected["prompt"][None].repeat(ROWS, 1)
        tensors[f"{checkpoint}.scores"], tensors[f"{checkpoint}.history"] = scores, history
        for case in cases:
            apply = processors(model, case["config"], history.shape[1])
            out, exact = apply(history, scores.clone()), apply(history, scores.double())
            assert torch.equal(out.isinf(), exact.isinf()), (checkpoint, case["name"])
            assert (out != scores).any(), (checkpoint, case["name"])
            tensors[f"{checkpoint}.{case['name']}"] = out.contiguous()
    save(folder, "sampling", tensors, {"checkpoints": list(FIXTURES), "cases": cases})


# name: checkpoint, lengths of the prompts, keys for generate().
TEXTS = {
    "batch": ("llama/uneven", [9, 3, 13], {"max_new_tokens": 12}),
    "batch_neo": ("gpt_neo/base", [4, 11, 7], {"max_new_tokens": 12}),
    "batch_windows": ("gpt_neo/uneven", [12, 2, 9], {"max_new_tokens": 14}),
    "batch_ends": ("qwen3/base", [5, 8, 2, 6], {"max_new_tokens": 14, "ends": 2}),
    "penalty": ("llama/tied", [10, 4], {"max_new_tokens": 12, "repetition_penalty": 1.5,
                                        "no_repeat_ngram_size": 2}),
    "beams": ("llama/uneven", [12], {"max_new_tokens": 12, "num_beams": 4,
                                     "num_return_sequences": 4, "no_repeat_ngram_size": 4}),
    "beams_batch": ("gpt_neo/base", [6, 11, 3], {"max_new_tokens": 10, "num_beams": 3,
                                                 "num_return_sequences": 2}),
    "beams_ends": ("llama/sharded", [7, 4], {"max_new_tokens": 14, "num_beams": 4, "ends": 3,
                                             "num_return_sequences": 4}),
    "beams_early": ("llama/sharded", [7, 4], {"max_new_tokens": 14, "num_beams": 4, "ends": 3,
                                              "num_return_sequences": 4, "early_stopping": True}),
    "beams_never": ("llama/sharded", [7, 4], {"max_new_tokens": 14, "num_beams": 4, "ends": 3,
                                              "num_return_sequences": 4,
                                              "early_stopping": "never"}),
    "beams_long": ("qwen3/uneven", [6, 9], {"max_new_tokens": 14, "num_beams": 3, "ends": 2,
                                            "num_return_sequences": 3, "length_penalty": 2.0,
                                            "early_stopping": "never"}),
    "beams_short": ("qwen3/uneven", [6, 9], {"max_new_tokens": 14, "num_beams": 3, "ends": 2,
                                             "num_return_sequences": 3, "length_penalty": -1.0}),
    "beams_penalty": ("llama/biases", [8, 5], {"max_new_tokens": 10, "num_beams": 3,
                                               "num_return_sequences": 3, "repetition_penalty": 1.3,
                                               "min_new_tokens": 4, "ends": 2}),
}
# Four beams that repeat no four tokens, on all checkpoints; one row is padded.
TEXTS |= {"beams_" + checkpoint.replace("/", "_"): (checkpoint, [9, 5], {
    "max_new_tokens": 12, "num_beams": 4, "num_return_sequences": 4, "no_repeat_ngram_size": 4})
    for checkpoint in FIXTURES}


def ends_of(model, prompts, mask, n):
    """Tokens that beam search meets on its way: the most frequent ones of its beams."""
    out = model.generate(prompts, attention_mask=mask, do_sample=False, max_new_tokens=10,
                         num_beams=4, num_return_sequences=4)[:, prompts.shape[1]:]
    ids, counts = out[:, 3:].unique(return_counts=True)
    return ids[counts.argsort(descending=True, stable=True)][:n].tolist()


def make_text(name, seed):
    """The tensors and the keys of one case, and whether float64 and noise agree."""
    checkpoint, lengths, keys = TEXTS[name]
    keys = dict(keys)
    folder = os.path.join(ROOT, checkpoint)
    eager = {"attn_implementation": "eager"}
    if "moe" in checkpoint:  # the other product of experts has no float64
        eager["experts_implementation"] = "eager"
    model, exact = (AutoModelForCausalLM.from_pretrained(folder, dtype=t, **eager).eval()
                    for t in (torch.float32, torch.float64))
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    prompts = torch.zeros(len(lengths), longest, dtype=torch.int64)
    mask = torch.zeros_like(prompts)
    for i, n in enumerate(lengths):
        prompts[i, longest - n:] = torch.randint(model.config.vocab_size, (n,),
                                                 generator=generator)
        mask[i, longest - n:] = 1
    n_ends = keys.pop("ends", 0)
    if n_ends:
        keys["eos_token_id"] = ends_of(model, prompts, mask, n_ends)
        keys["pad_token_id"] = keys["eos_token_id"][0]
    else:
        keys["pad_token_id"] = 0

    def run(m, prompts, mask):
        out = m.generate(prompts, attention_mask=mask, do_sample=False,
                         return_dict_in_generate=True, output_scores=True, **keys)
        return out.sequences[:, prompts.shape[1]:], getattr(out, "sequences_scores", None)

    # In float64 padding turns into NaN upstream: there each prompt runs alone.
    found, scores = run(model, prompts, mask)
    per, sure = len(found) // len(lengths), True
    for i, n in enumerate(lengths):
        other, other_scores = run(exact, prompts[i:i + 1, longest - n:], mask[i:i + 1, longest - n:])
        mine = found[i * per:(i + 1) * per]
        width = other.shape[1]
        sure &= torch.equal(mine[:, :width], other) and bool(
            (mine[:, width:] == keys["pad_token_id"]).all())
        if scores is not None:
            row = scores[i * per:(i + 1) * per]
            gap = row.sort().values.diff().abs().min() if per > 1 else 1
            sure &= bool(gap > 1e-4) and torch.allclose(row, other_scores.float(), atol=1e-5)
    tensors = {f"{name}.prompts": prompts, f"{name}.lengths": torch.tensor(lengths),
               f"{name}.new": found.contiguous()}
    if scores is not None:
        tensors[f"{name}.scores"] = scores.contiguous()
    return tensors, {"name": name, "model": checkpoint, "config": keys}, sure


def make_texts(folder):
    tensors, cases = {}, []
    for name in TEXTS:
        for seed in range(1, 40):
            found, case, sure = make_text(name, seed)
            if sure:
                break
        assert sure, name
        tensors.update(found)
        cases.append(case)
        print(name, seed, flush=True)
    save(folder, "texts", tensors, {"cases": cases})


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    folder = os.path.join(ROOT, "generation")
    os.makedirs(folder, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(os.path.join(ROOT, "gpt_neo/uneven"))
    with torch.no_grad():
        make_processors(model, folder)
        make_sampling(model, folder)
        make_texts(folder)
    for f in os.listdir(folder):
        os.chmod(os.path.join(folder, f), 0o644)


if __name__ == "__main__":
    main()
