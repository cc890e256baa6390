#!/usr/bin/env python3
"""Make examples/checkpoint/: a small Llama that the examples can run, in Hugging Face form.

A byte-level BPE tokenizer of the Llama-3 kind (1024 tokens) and a LlamaForCausalLM of 1.8 million
parameters are trained from nothing on the Tiny Shakespeare text (1.1 MB, public domain, not part
of this repository), and saved in bf16. Every --save-every steps the state is saved, so a run may
be ended at any time; --start continues from a saved folder, with a new learning-rate schedule.

Run, from the repository root:

    python3 tools/train_demo.py tinyshakespeare.txt --out examples/checkpoint

Needs torch, transformers and tokenizers; about a quarter of an hour on two cores with AMX.
"""

import argparse
import json
import math
import os
import random
import time

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train_tokenizer(text, vocab_size):
    """The Llama-3 pipeline: split, bytes, merges; encoding puts BOS in front."""
    tokenizer = Tokenizer(BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B",
            special_tokens=[(BOS, tokenizer.token_to_id(BOS))]),
    ])
    return tokenizer


class Windows:
    """Random training windows. Each begins with BOS and the start of a speech.

    A speaker line ends in the one token ":\\n", but a prompt such as "ROMEO:" ends in the token
    ":". So that the model has seen both, each ":\\n" is written as ":" and "\\n" now and then.
    """

    def __init__(self, tokenizer, text, seed):
        self.ids = tokenizer.encode(text, add_special_tokens=False).ids
        self.bos = tokenizer.token_to_id(BOS)
        ends = {i for i in range(tokenizer.get_vocab_size())
                if tokenizer.decode([i]).endswith("\n\n")}
        self.starts = [0] + [i + 1 for i, t in enumerate(self.ids) if t in ends]
        one, two = (tokenizer.encode(s, add_special_tokens=False).ids for s in ("a:\n", ":"))
        self.joined = one[-1]
        self.split = two + tokenizer.encode("\n", add_special_tokens=False).ids
        assert tokenizer.decode([self.joined]) == ":\n" and len(self.split) == 2
        self.random = random.Random(seed)

    def one(self, start, length, split_rate):
        row = [self.bos]
        first = True
        for t in self.ids[start:start + length]:
            if t == self.joined:
                cut = self.random.random() < (0.5 if first else split_rate) and split_rate > 0
                row += self.split if cut else [t]
                first = False
            else:
                row.append(t)
        return row[:length]

    def batch(self, rows, length):
        usable = [s for s in self.starts if s + length <= len(self.ids)]
        starts = self.random.choices(usable, k=rows)
        return torch.tensor([self.one(s, length, 0.15) for s in starts])

    def all(self, length):
        """The whole text once, in order."""
        starts = range(0, len(self.ids) - length, length - 1)
        return torch.tensor([self.one(s, length, 0.0) for s in starts])


def make_model(args, tokenizer):
    torch.manual_seed(args.seed)
    if args.start:
        return LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=192, intermediate_size=512,
        num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS), eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=None))


def make_optimizer(model, args):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ], lr=args.lr, betas=(0.9, 0.95))


def learning_rate(step, args):
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    part = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * part)))


@torch.no_grad()
def mean_loss(model, rows):
    model.eval()
    losses = [model(input_ids=r, labels=r).loss.item() for r in rows.split(16)]
    model.train()
    return sum(losses) / len(losses)


def save(model, tokenizer, out):
    """What save_pretrained writes, in bf16; the model that trains stays f32."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id)
    copy.save_pretrained(out)
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False).save_pretrained(out)
    name_tokenizer_class(os.path.join(out, "tokenizer_config.json"))


def name_tokenizer_class(path):
    """Transformers 5 writes a class name that version 4 does not know; both know this one."""
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.pop("backend", None)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


@torch.no_grad()
def show(model, tokenizer, prompt="ROMEO:", tokens=200):
    """Greedy and sampled text, and how much of the greedy text repeats."""
    model.eval()
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    for name, keys in (("greedy", {"do_sample": False}),
                       ("sampled", {"do_sample": True, "temperature": 0.8, "top_k": 50})):
        torch.manual_seed(1)
        new = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
                             pad_token_id=model.config.eos_token_id, **keys)[0].tolist()
        fours = [tuple(new[i:i + 4]) for i in range(len(new) - 3)]
        print(f"--- {name}: {len(set(new))} distinct tokens, "
              f"{len(set(fours))} of {len(fours)} four-grams distinct\n{tokenizer.decode(new)}")
    print("---", flush=True)
    model.train()


def train(args):
    with open(args.text, encoding="utf-8") as f:
        text = f.read()
    tokenizer = train_tokenizer(text, args.vocab)
    cut = text.rindex("\n\n", 0, int(len(text) * 0.96)) + 2
    windows = Windows(tokenizer, text[:cut], args.seed)
    held_out = Windows(tokenizer, text[cut:], args.seed).all(256)
    model = make_model(args, tokenizer)
    optimizer = make_optimizer(model, args)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, "
          f"{len(windows.ids)} training tokens, {len(windows.starts)} speeches", flush=True)

    begun, total, count = time.time(), 0.0, 0
    model.train()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        long = step % 8 == 7  # now and then the full length, so that all positions are known
        rows = windows.batch(args.batch // 2, 512) if long else windows.batch(args.batch, 256)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total, count = total + loss.item(), count + 1
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {total / count:.3f}, {time.time() - begun:.0f} s",
                  flush=True)
            total, count = 0.0, 0
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            print(f"step {step + 1}: held-out loss {mean_loss(model, held_out):.3f}")
            show(model, tokenizer)
            save(model, tokenizer, args.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", help="the training text, one file")
    parser.add_argument("--out", default="examples/checkpoint")
    parser.add_argument("--start", help="a folder that an earlier run saved; else from nothing")
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=32, help="windows of 256 tokens per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--save-every", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.makedirs(args.out, exist_ok=True)
    train(args)


if __name__ == "__main__":
    main()
