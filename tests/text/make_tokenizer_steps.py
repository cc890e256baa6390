#!/usr/bin/env python3
"""Make test_tokenizer_steps.json: every step of the pipeline, with what the Hugging Face library
(tokenizers 0.23) makes of a short text. Run in this folder; needs tokenizers. ASCII with \\u escapes,
because many of the characters are invisible."""

import json

from tokenizers import Tokenizer

PIECES = ["<unk>", "a", "b", "c", "e", " ", "\u2581", "1", "2", "\u0120", "ab", "\u2581a", "\u0120a", " a",
          "abc", "12", "\u00e9", "\u00c3", "\u00a9", "\u00c3\u00a9", "<0xC3>", "<0xA8>", "A", "b ", "x", ",",
          "\u00c5", "\u010a", "\n", "\u0301", "  "]
MODEL = {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(PIECES)},
         "merges": [["a", "b"], ["\u2581", "a"], ["\u0120", "a"], [" ", "a"], ["ab", "c"], ["1", "2"],
                    ["\u00c3", "\u00a9"], ["b", " "], [" ", " "]]}
UNK = {"unk_token": "<unk>"}
CASES = []


def case(name, text, added=(), options=None, **steps):
    """added: contents and flags, in order; options: of the model; steps: normalizer=... and so on."""
    tokens, vocab = [], dict(MODEL["vocab"])
    for content, flags in added:
        vocab.setdefault(content, len(vocab))
        tokens.append({"id": vocab[content], "content": content, "single_word": False,
                       "lstrip": False, "rstrip": False, "normalized": False, "special": False} | flags)
    parts = {"added_tokens": tokens, "options": options or {}, **steps}
    spec = {"version": "1.0", "added_tokens": tokens, "model": MODEL | (options or {}),
            **{key: steps.get(key) for key in
               ("normalizer", "pre_tokenizer", "post_processor", "decoder")}}
    t = Tokenizer.from_str(json.dumps(spec))
    row = {"name": name, **parts, "text": text, "ids": t.encode(text).ids}
    t.encode_special_tokens = True
    row["ids_special_as_text"] = t.encode(text).ids
    row["decoded"] = t.decode(row["ids"], skip_special_tokens=False)
    CASES.append(row)


def step(kind, **fields):
    return {"type": kind, **fields}


def split(behavior, invert=False, **pattern):
    return step("Split", pattern=pattern, behavior=behavior, invert=invert)


def byte_level(prefix=False, regex=True):
    return step("ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


def metaspace(scheme, cut=True):
    return step("Metaspace", replacement="\u2581", prepend_scheme=scheme, split=cut)


def replace(content, **pattern):
    return step("Replace", pattern=pattern, content=content)


def strip(content, start, stop):
    return step("Strip", content=content, start=start, stop=stop)


def template(*pieces):
    return step("TemplateProcessing",
                single=[{"Sequence": {"id": "A", "type_id": 0}} if p == "A" else
                        {"SpecialToken": {"id": p, "type_id": 0}} for p in pieces],
                pair=[], special_tokens={p: {"id": p, "ids": [len(PIECES)], "tokens": [p]}
                                         for p in pieces if p != "A"})


def models():
    case("one word", "ab c ab")
    case("no unknown token: characters vanish", "azb")
    case("unknown token", "azzb", options=UNK)
    case("fused unknown", "azzb", options=UNK | {"fuse_unk": True})
    case("byte fallback where all bytes exist", "a\u00e8\u00eaz\u00e8",
         options=UNK | {"byte_fallback": True})
    case("ignore_merges", "abc", options={"ignore_merges": True})


def pre_tokenizers():
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            case(f"Split {behavior}{' inverted' * invert}", " ab  a, ab ",
                 pre_tokenizer=split(behavior, invert, Regex=r"\s|,"))
    case("Split at a string", " ab  ab", pre_tokenizer=split("MergedWithNext", String=" "))
    case("Split at empty matches", "abcab12", pre_tokenizer=split("Isolated", Regex="x*|b"))
    case("Digits", "a12b12", pre_tokenizer=step("Digits", individual_digits=False))
    case("individual Digits", "a12b12", pre_tokenizer=step("Digits", individual_digits=True))
    for prefix, regex in ((False, True), (True, True), (False, False)):
        case(f"ByteLevel, prefix {prefix}, cutting {regex}", "a a\u00e9 a\n",
             pre_tokenizer=byte_level(prefix, regex), decoder=byte_level())
    case("ByteLevel before another step", "a a", pre_tokenizer=step(
        "Sequence", pretokenizers=[byte_level(regex=False), split("Removed", String="\u0120")]))
    for scheme in ("never", "first", "always"):
        for cut in (True, False):
            case(f"Metaspace {scheme}, cutting {cut}", "ab a<s>ab", added=[("<s>", {"special": True})],
                 pre_tokenizer=metaspace(scheme, cut), decoder=metaspace(scheme, cut))
    for name, before in (("Split", split("Isolated", String="c")),
                         ("Digits", step("Digits", individual_digits=True))):
        for scheme in ("never", "first", "always"):  # "first" is of the text, not of each piece
            case(f"Metaspace {scheme} after {name}", "ab1acab a", pre_tokenizer=step(
                "Sequence", pretokenizers=[before, metaspace(scheme, True)]))


def normalizers():
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        case(form, "e\u0301 A\u030a\u212b\u00e9 \uff11\u00b2", options=UNK, normalizer=step(form))
    case("normalisation of marks younger than Unicode 10", "a\u1ac5\u0316\u0301", options=UNK,
         normalizer=step("NFC"))
    case("Lowercase", "ABC\u0130", options=UNK, normalizer=step("Lowercase"))
    case("Strip", "\u3000 ab \u2003", normalizer=step("Strip", strip_left=True, strip_right=True))
    case("Strip on the left", " ab ", normalizer=step("Strip", strip_left=True, strip_right=False))
    case("Llama 2", "a  a<s>a\u00e8", added=[("<s>", {"special": True})],
         options=UNK | {"byte_fallback": True},
         normalizer=step("Sequence", normalizers=[step("Prepend", prepend="\u2581"),
                                                  replace("\u2581", String=" ")]),
         decoder=step("Sequence", decoders=[replace(" ", String="\u2581"), step("ByteFallback"),
                                            step("Fuse"), strip(" ", 1, 0)]))
    case("Replace by a regular expression", "a11122a", normalizer=replace("b", Regex="[12]+"))
    case("ByteLevel as a normalizer", "a a", normalizer=step("ByteLevel"), decoder=byte_level())


def added_tokens():
    case("the longest wins, spaces go with it", "a <m> <m>  ab<mm>b<r> \t a",
         added=[("<m>", {"lstrip": True}), ("<mm>", {}), ("<r>", {"rstrip": True})])
    case("spaces on both sides", "a  <m>  <m> b", added=[("<m>", {"lstrip": True, "rstrip": True})])
    case("single words", "ab xab ab, ab_ ab\u00e9 \u0301ab", added=[("ab", {"single_word": True})])
    case("in normalised text", "A\u030a \u212b", normalizer=step("NFC"),
         added=[("\u212b", {"normalized": True})])
    case("before normalisation", "A\u030a \u212b", normalizer=step("NFC"), added=[("\u212b", {})])
    case("special ones as text use up what they match", "<s><s>x>", options=UNK,
         added=[("<s>", {"special": True}), ("x>", {}), ("s><s", {})])
    case("template", "ab", added=[("<s>", {"special": True})], post_processor=step(
        "Sequence", processors=[byte_level(), template("<s>", "A", "<s>", "A")]))


def decoders():
    case("none", "abca", pre_tokenizer=split("Isolated", String="c"))
    case("Strip of each token", "b ab b", pre_tokenizer=split("Isolated", String=" "),
         decoder=strip("b", 0, 1))
    case("Replace after Fuse", "a b a",
         decoder=step("Sequence", decoders=[step("Fuse"), replace("x", Regex="a b")]))
    case("Strip after ByteLevel", "aaba", pre_tokenizer=byte_level(),
         decoder=step("Sequence", decoders=[byte_level(), strip("a", 1, 2)]))


def main():
    for part in (models, pre_tokenizers, normalizers, added_tokens, decoders):
        part()
    with open("test_tokenizer_steps.json", "w", encoding="ascii") as f:
        f.write('{"model": ' + json.dumps(MODEL) + ',\n"cases": [\n')
        f.write(",\n".join(json.dumps(c) for c in CASES) + "\n]}\n")


if __name__ == "__main__":
    main()
