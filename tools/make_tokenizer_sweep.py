#!/usr/bin/env python3
"""Make tests/golden/tokenizer/sweep.json: checksums of what the Hugging Face library makes of much
text, for the tokenizers of five families; and the tokenizers gemma and phi3 themselves.

    gemma/tokenizer.json  Gemma 3: spaces become U+2581, cut at them, byte fallback, BOS in front;
                          runs of newlines and of U+2581 are added tokens
    phi3/tokenizer.json   Phi-3, as Llama 2: U+2581 put in front, never cut into words, byte
                          fallback, BOS in front; special tokens that swallow the space behind them
    sweep.json            {"pieces": strings that the text is made of (tokenizer_text.py),
                           "corpus_bytes": ..., "chunk_bytes": ..., "group": strings per row,
                           "texts": {"corpus": [...], "strings": [...]} CRC-32 of the text itself,
                           "shapes": {name: {"corpus": rows, "strings": rows}}}

A row has the CRC-32 of: the ids; the ids where special tokens are text; the ids decoded; decoded
without special tokens; and, of "strings" only, random ids decoded. A row of the corpus is one text
of chunk_bytes or a little more, one of the strings is a group of short texts. Ids are summed as
little-endian 32-bit numbers with -1 behind each text, texts as UTF-8 with a zero byte behind.

Run, from the repository root, after make_tokenizer_golden.py, whose other tokenizers are read:

    python3 tools/make_tokenizer_sweep.py

With --train tinyshakespeare.txt gemma and phi3 are learned anew. The library breaks ties between rare
characters as its hash tables fall, so they come out a little different each time; the sums of
tokenizers that are there already are always the same.

Needs tokenizers.
"""

import argparse
import json
import os
import struct
import zlib

from tokenizers import (AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors,
                        trainers)
from tokenizers.models import BPE

from tokenizer_corpus import corpus, multilingual
from tokenizer_text import chunk, random_ids, string

SHAPES = ["llama3", "qwen", "gemma", "phi3", "gpt2"]
CHUNKS, CHUNK_BYTES = 72, 16384
GROUPS, GROUP = 100, 1000
BYTES = [f"<0x{b:02X}>" for b in range(256)]
VOCAB = 256 + 500
# Beside the added tokens of corpus(): those of the two families here, and what decoders care about.
MORE = ["<bos>", "<eos>", "<start_of_turn>user\n", "<end_of_turn>\n", "<s>", "</s>", "</s> x", "<|user|>",
        "<|user|> hi<|end|>\n<|assistant|>", "<|end|>  x", "\u2581", "\u2581\u2581", "a\u2581b", "<0x41>", "<0xE4>", "<unk>"]


def plain(content, **flags):
    return AddedToken(content, **{"normalized": False, **flags})


def gemma():
    t = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                   decoders.Fuse()])
    special = [plain(s, special=True) for s in ("<pad>", "<eos>", "<bos>", "<unk>")]
    later = [plain("\n" * n) for n in range(2, 8)] + [plain("\u2581" * n) for n in range(2, 8)]
    later += [plain(s, special=True) for s in ("<start_of_turn>", "<end_of_turn>")]
    later += [plain("<tool>"), plain("<tool>box"), AddedToken("thee", single_word=True, normalized=True)]
    return t, special, later, "<bos>"


def phi3():
    t = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                         normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = [plain("<unk>", special=True), plain("<s>", special=True), plain("</s>", rstrip=True)]
    later = [plain("<|endoftext|>", special=True)]
    later += [plain(s, rstrip=True, special=True) for s in ("<|assistant|>", "<|user|>", "<|end|>")]
    later += [plain("<mask>", lstrip=True, special=True), AddedToken("<fill>", rstrip=True, normalized=True),
              plain("thee", single_word=True), AddedToken("na\u00efve", normalized=True)]
    return t, special, later, "<s>"


def train(make, lines):
    """The tokenizer as the object that tokenizer.json holds. Words end at spaces while it learns,
    as in SentencePiece; the published files of Phi-3 do without."""
    t, special, later, bos = make()
    cut = t.pre_tokenizer
    t.pre_tokenizer = cut or pre_tokenizers.Split("\u2581", "merged_with_next")
    t.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=VOCAB, limit_alphabet=160, show_progress=False,
        special_tokens=[s.content for s in special] + BYTES))
    spec = json.loads(t.to_str())
    if cut is None:
        spec["pre_tokenizer"] = None
    names = {s.content for s in special}
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["content"] in names]
    t = Tokenizer.from_str(json.dumps(spec))
    for token in special + later:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    t.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, t.token_to_id(bos))])
    return json.loads(t.to_str())


class Sum:
    def __init__(self):
        self.crc = 0

    def ids(self, ids):
        self.crc = zlib.crc32(struct.pack(f"<{len(ids) + 1}i", *ids, -1), self.crc)

    def text(self, text):
        self.crc = zlib.crc32(text.encode() + b"\0", self.crc)


def row(t, texts, drawn=None):
    """The sums of some texts, and of decoding the random ids of some numbers."""
    sums = [Sum() for _ in range(4)]
    for s in texts:
        t.encode_special_tokens = True
        as_text = t.encode(s).ids
        t.encode_special_tokens = False
        ids = t.encode(s).ids
        sums[0].ids(ids)
        sums[1].ids(as_text)
        sums[2].text(t.decode(ids, skip_special_tokens=False))
        sums[3].text(t.decode(ids, skip_special_tokens=True))
    if drawn is not None:
        sums.append(Sum())
        for i in drawn:
            sums[4].text(t.decode(random_ids(i, t.get_vocab_size()), skip_special_tokens=False))
    return [s.crc for s in sums]


def text_sum(texts):
    s = Sum()
    for text in texts:
        s.text(text)
    return s.crc


def pieces():
    return [s for s in corpus() if 0 < len(s) <= 40] + MORE


def write_tokenizers(out, text):
    with open(text, encoding="utf-8") as f:
        lines = f.read(60_000).splitlines() + multilingual()
    for name, make in (("gemma", gemma), ("phi3", phi3)):
        os.makedirs(os.path.join(out, name), exist_ok=True)
        with open(os.path.join(out, name, "tokenizer.json"), "w", encoding="ascii") as f:
            json.dump(train(make, lines), f, indent=1)
            f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", metavar="TEXT",
                        help="make gemma and phi3 of the first 60,000 characters of a file")
    parser.add_argument("--out", default="tests/golden/tokenizer")
    args = parser.parse_args()
    if args.train:
        write_tokenizers(args.out, args.train)

    parts = pieces()
    chunks = [chunk(i, parts, CHUNK_BYTES) for i in range(CHUNKS)]
    groups = [range(g * GROUP, (g + 1) * GROUP) for g in range(GROUPS)]
    strings = [[string(i, parts) for i in group] for group in groups]
    assert {ord(c) >> 16 for c in "".join(chunks)} == set(range(17))
    shapes = {}
    for name in SHAPES:
        t = Tokenizer.from_file(os.path.join(args.out, name, "tokenizer.json"))
        shapes[name] = {"corpus": [row(t, [c]) for c in chunks],
                        "strings": [row(t, s, g) for s, g in zip(strings, groups)]}
        print(name, t.get_vocab_size(), "tokens")
    texts = {"corpus": [text_sum([c]) for c in chunks], "strings": [text_sum(s) for s in strings]}
    sweep = {"pieces": parts, "corpus_bytes": sum(len(c.encode()) for c in chunks),
             "chunk_bytes": CHUNK_BYTES, "group": GROUP, "texts": texts, "shapes": shapes}
    with open(os.path.join(args.out, "sweep.json"), "w", encoding="ascii") as f:
        json.dump(sweep, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
