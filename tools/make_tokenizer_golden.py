#!/usr/bin/env python3
"""Make tests/golden/tokenizer/: tiny tokenizers and what the Hugging Face library does with them.

    corpus.json            a JSON array of strings (from tokenizer_corpus.py)
    <name>/tokenizer.json  llama3, gpt2, qwen, falcon: the pipelines of these families, about 600 tokens
    gpt2_pair/             vocab.json and merges.txt instead, as older GPT-2 and GPT-Neo folders
    <name>/expected.json   {"cases": one object for each string of the corpus,
                            "decode_cases": objects for id sequences that no text gives,
                                            many of them broken UTF-8}

A case has "ids" (encode), "ids_plain" (add_special_tokens=False), "decoded" and "decoded_skip"
(ids_plain decoded with skip_special_tokens False and True); a decode case has "ids", "decoded" and
"decoded_skip". All files are ASCII with \\u escapes, because many of the characters are invisible.

Each tokenizer has added tokens of every kind (special or not, lstrip, rstrip, single_word,
normalized, one the beginning of another), and some tokens whose merge was taken away: they are
found only where ignore_merges is true, as in Llama 3. gpt2 writes its merges as strings, the
others as pairs: files of both kinds are in use.

Run, from the repository root; the text is any English text, here Tiny Shakespeare:

    python3 tools/make_tokenizer_golden.py tinyshakespeare.txt

Needs tokenizers.
"""

import argparse
import json
import os
import random

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers,
                        processors, trainers)
from tokenizers.models import BPE

from tokenizer_corpus import corpus, multilingual

VOCAB = 600
LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

SPECIAL = {
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
               "<|eot_id|>"],
    "gpt2": ["<|endoftext|>"],
    "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "falcon": ["<|endoftext|>"],
}


def added_tokens(name):
    """Added tokens beside the plain special ones."""
    tokens = [
        AddedToken("<mask>", lstrip=True, special=True),
        AddedToken("<fill>", rstrip=True, normalized=False),
        AddedToken("<tool>", normalized=False),
        AddedToken("<tool>box", normalized=False),
        AddedToken("thee", single_word=True, normalized=False),
        AddedToken("na\u00efve", normalized=True),
    ]
    if name == "qwen":
        tokens += [AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False),
                   # NFC would make U+00C5 of it: found only because it is looked for before.
                   AddedToken("\u212b", normalized=False)]
    return tokens


def byte_level(**keys):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **keys)


def pipeline(name):
    """A tokenizer of the family, with an empty vocabulary."""
    t = Tokenizer(BPE(ignore_merges=name == "llama3"))
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if name == "gpt2":
        t.pre_tokenizer = byte_level(use_regex=True)
        return t
    if name == "falcon":
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Punctuation("contiguous"), byte_level(use_regex=True),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
        return t
    split = Regex(LLAMA3_SPLIT if name == "llama3" else QWEN_SPLIT)
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), byte_level(use_regex=False)])
    if name == "qwen":
        t.normalizer = normalizers.NFC()
    return t


def text_of(token):
    return decoders.ByteLevel().decode([token])


def without_some_merges(model, every=9):
    """Takes away the merges of some tokens that no other merge needs; the tokens stay."""
    needed = {part for pair in model["merges"] for part in pair}
    last = [pair for pair in model["merges"]
            if "".join(pair) not in needed and "\ufffd" not in text_of("".join(pair))]
    gone = last[::every]
    model["merges"] = [pair for pair in model["merges"] if pair not in gone]
    return ["".join(pair) for pair in gone]


def train(name, lines):
    """The tokenizer as the object that tokenizer.json holds, and the tokens without a merge."""
    t = pipeline(name)
    t.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=VOCAB, show_progress=False, initial_alphabet=sorted(byte_level().alphabet())))
    spec = json.loads(t.to_str())
    gone = without_some_merges(spec["model"])
    if name == "gpt2":  # as published: the special token is the last of the vocabulary
        spec["model"]["vocab"]["<|endoftext|>"] = len(spec["model"]["vocab"])

    t = Tokenizer.from_str(json.dumps(spec))
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in SPECIAL[name]])
    for token in added_tokens(name):
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    if name == "llama3":
        bos = "<|begin_of_text|>"
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                          special_tokens=[(bos, t.token_to_id(bos))]),
        ])
    spec = json.loads(t.to_str())
    if name == "gpt2":
        spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    return spec, gone


def pair_tokenizer(spec):
    """What Transformers builds from vocab.json and merges.txt alone."""
    model = spec["model"]
    t = Tokenizer(BPE(vocab=model["vocab"],
                      merges=[tuple(m.split(" ")) for m in model["merges"]]))
    t.pre_tokenizer = byte_level(use_regex=True)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    return t


def decode_sequences(t, seed=11):
    """Broken UTF-8 of every kind, then random ids. No byte 0: the results are C strings in tests."""
    alphabet = byte_chars()
    byte = [t.token_to_id(alphabet[b]) for b in range(256)]
    broken = [
        "e4", "e4b8", "e4b8ad", "f09f98", "f09f9880", "f09f", "f0", "c3", "c3a9", "80", "bf80", "ff", "fe",
        "c080", "c1bf", "e08080", "eda080", "edbfbf", "f4908080", "f8888080", "f7bfbfbf", "e4b841", "41e4b8",
        "e4b8e4b8ad", "f09f98f09f9880", "c3c3a9", "61ff62", "61ffff62", "e4b8ade4b8", "c3a9c3", "efbbbf61",
        "f09f41", "f041", "e441", "c341", "f0808080", "f4bf", "ed9fbf", "ee8080", "efbfbd", "80808041", "e48080ad",
    ]
    rows = [[byte[b] for b in bytes.fromhex(h)] for h in broken]
    rng = random.Random(seed)
    ids = [i for i in range(t.get_vocab_size()) if alphabet[0] not in t.id_to_token(i)]
    rows += [[rng.choice(ids) for _ in range(rng.randint(1, 12))] for _ in range(80)]
    rows += [[byte[rng.randint(128, 255)] for _ in range(rng.randint(1, 9))] for _ in range(40)]
    special = t.token_to_id("<|endoftext|>") or t.token_to_id("<|begin_of_text|>")
    rows += [[], [special], [special, special], [byte[0xe4], special, byte[0xb8]],
             [byte[0xe4], byte[0xb8], special, byte[0xad]], [special, byte[0x20], byte[0x61]]]
    return rows


def byte_chars():
    """The character that stands for each byte in a byte-level vocabulary."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(moved)) for b in range(256)]


def expected(t, strings):
    def both(ids):
        return {"decoded": t.decode(ids, skip_special_tokens=False),
                "decoded_skip": t.decode(ids, skip_special_tokens=True)}

    cases = []
    for s in strings:
        plain = t.encode(s, add_special_tokens=False).ids
        cases.append({"ids": t.encode(s).ids, "ids_plain": plain, **both(plain)})
    decode_cases = [{"ids": row, **both(row)} for row in decode_sequences(t)]
    return {"cases": cases, "decode_cases": decode_cases}


def check(name, t, spec, gone, strings, found):
    """The properties the fixture is there for."""
    for row, string in zip(found["cases"], strings):
        wanted = normalizers.NFC().normalize_str(string) if name == "qwen" else string
        # Two added tokens swallow spaces, one escapes NFC, and the characters of one all stand for
        # bytes: the decoder takes it for those bytes, which are not UTF-8.
        if not any(token in wanted for token in ("<mask>", "<fill>", "na\u00efve")) \
                and "\u212b" not in string:
            assert row["decoded"] == wanted, (name, string, row["decoded"])
    whole = [g for g in gone if t.model.token_to_id(g) in
             t.encode(text_of(g), add_special_tokens=False).ids]
    assert gone and whole == (gone if spec["model"]["ignore_merges"] else []), (name, gone, whole)
    assert any("\ufffd" in row["decoded"] for row in found["decode_cases"])


def write_json(path, value):
    with open(path, "w", encoding="ascii") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def write_rows(path, groups):
    """One case per line."""
    with open(path, "w", encoding="ascii") as f:
        parts = [f'"{key}": [\n' + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
                 + "\n]" for key, rows in groups.items()]
        f.write("{" + ",\n".join(parts) + "}\n")


README = """# Tokenizer fixtures

Made by `tools/make_tokenizer_golden.py` with the library tokenizers {version}; the script says what
each file holds and what each tokenizer is there for. {strings} strings, {decodes} decode cases.

| fixture | normaliser | pre-tokeniser | ids |
|---|---|---|---|
| llama3 | none | Split (Llama 3), ByteLevel | BOS in front, ignore_merges |
| gpt2 | none | ByteLevel with its own regex | merges as strings |
| gpt2_pair | none | the same | vocab.json and merges.txt only, one special token |
| qwen | NFC | Split (Qwen 2: single digits), ByteLevel | |
| falcon | none | Punctuation, ByteLevel with its own regex, Digits, Split (three digits) | |

`gemma`, `phi3` and `sweep.json` are made by `tools/make_tokenizer_sweep.py`: checksums of what the
library makes of more than a megabyte of text and of 100,000 random strings, for five tokenizers.

| fixture | normaliser | pre-tokeniser | ids |
|---|---|---|---|
| gemma | spaces become U+2581 | Split at spaces | BOS in front, byte fallback |
| phi3 | U+2581 in front, spaces become U+2581 | none | BOS in front, byte fallback |
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", help="English text to train on; its first 60,000 characters count")
    parser.add_argument("--out", default="tests/golden/tokenizer")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as f:
        lines = [f.read(60_000)] + multilingual()
    strings = corpus()
    assert len(strings) >= 150

    def folder(name):
        os.makedirs(os.path.join(args.out, name), exist_ok=True)
        return os.path.join(args.out, name)

    write_json(os.path.join(folder(""), "corpus.json"), strings)
    for name in SPECIAL:
        spec, gone = train(name, lines)
        path = os.path.join(folder(name), "tokenizer.json")
        write_json(path, spec)
        t = Tokenizer.from_file(path)
        found = expected(t, strings)
        check(name, t, spec, gone, strings, found)
        write_rows(os.path.join(folder(name), "expected.json"), found)
        print(f"{name}: {t.get_vocab_size()} tokens, {len(gone)} without a merge")
        if name == "gpt2":
            t = pair_tokenizer(spec)
            t.model.save(folder("gpt2_pair"))
            found = expected(t, strings)
            check(name, t, spec, gone, strings, found)
            write_rows(os.path.join(folder("gpt2_pair"), "expected.json"), found)
    with open(os.path.join(args.out, "README.md"), "w", encoding="utf-8") as f:
        f.write(README.format(version=tokenizers.__version__, strings=len(strings),
                              decodes=len(found["decode_cases"])))


if __name__ == "__main__":
    main()
