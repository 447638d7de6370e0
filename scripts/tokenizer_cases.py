#!/usr/bin/env python3
"""Variants of a tokenizer.json and the ids that HuggingFace `tokenizers` gives, for harness/tests/tokenizer_variants.rs.

Each variant is the trained model's tokenizer with some values replaced; the test makes the same file, carries it over
and compares the engine's ids.

    python3 -m venv .venv && .venv/bin/pip install tokenizers
    .venv/bin/python scripts/tokenizer_cases.py harness/tests/fixtures/tokenizers.json
"""
import copy
import json
import platform
import sys

import tokenizers

BASE = "gates/models/bitnet-harness-home-hf/tokenizer.json"
TEXTS = [
    "Hello, world!",
    "switch the lamp in the kitchen on",
    "  two  spaces\tand a tab\n\nlines\r\n",
    "12345 1 22 333 4.5 007",
    "don't I'LL we've o'neil",
    "é灯🐍 naïve Ünïcode",
    "a<|eot_id|>b <|eot_id|> c",
    " <tool> x <tool>y<tool>",
    "snake_case camelCase {\"json\": [1, 2]}",
    "e\u0301 \u00e9",
    "...!!! ?? --- ==",
    "",
]
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PLAIN = {**BYTES, "use_regex": False}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def seq(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern, **more):
    return {**SPLIT, "pattern": {"Regex": pattern}, **more}


def template(*pieces):
    out, tokens = [], {}
    for piece in pieces:
        if piece == "A":
            out.append({"Sequence": {"id": "A", "type_id": 0}})
        else:
            out.append({"SpecialToken": {"id": piece, "type_id": 0}})
            tokens[piece] = {"id": piece, "ids": [IDS[piece]], "tokens": [piece]}
    return {"type": "TemplateProcessing", "single": out, "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": tokens}


BOS, EOS, EOT = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
base = json.load(open(BASE, encoding="utf-8"))
IDS = {t["content"]: t["id"] for t in base["added_tokens"]}
IDS.update(base["model"]["vocab"])


def added(content, id, special=False, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special, **flags}


def with_flags(**flags):
    return [dict(t, **(flags if t["content"] == EOT else {})) for t in base["added_tokens"]]


TOP = max(IDS.values()) + 1
VARIANTS = {
    "as it is": {},
    "no post-processor": {"post_processor": None},
    "byte-level post-processor": {"post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}},
    "bos in front": {"post_processor": template(BOS, "A")},
    "the text only": {"post_processor": template("A")},
    "eos behind": {"post_processor": template("A", EOS)},
    "bos and eos": {"post_processor": template(BOS, "A", EOS)},
    "two in front": {"post_processor": template(BOS, EOT, "A")},
    "another token in front": {"post_processor": template(EOT, "A")},
    "a sequence of processors": {"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template(BOS, "A")]}},
    "a sequence with eos": {"post_processor": {"type": "Sequence", "processors": [template(BOS, "A", EOS)]}},
    "bert's post-processor": {"post_processor": {"type": "BertProcessing", "sep": [EOS, IDS[EOS]], "cls": [BOS, IDS[BOS]]}},
    "roberta's post-processor": {"post_processor": {"type": "RobertaProcessing", "sep": [EOS, IDS[EOS]], "cls": [BOS, IDS[BOS]], "trim_offsets": True, "add_prefix_space": False}},
    "llama 3's rule": {"pre_tokenizer": seq(split(LLAMA3), PLAIN)},
    "qwen 2's rule": {"pre_tokenizer": seq(split(QWEN2), PLAIN), "model.ignore_merges": False},
    "gpt-2's rule": {"pre_tokenizer": BYTES, "model.ignore_merges": False},
    "gpt-2's rule by default": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}, "model.ignore_merges": False},
    "a prefix space": {"pre_tokenizer": {**BYTES, "add_prefix_space": True}},
    "digits apart": {"pre_tokenizer": seq({"type": "Digits", "individual_digits": True}, BYTES), "model.ignore_merges": False},
    "digits together": {"pre_tokenizer": seq({"type": "Digits", "individual_digits": False}, BYTES)},
    "falcon 3's rule": {"pre_tokenizer": seq({"type": "Punctuation", "behavior": "Contiguous"}, BYTES, {"type": "Digits", "individual_digits": True}), "model.ignore_merges": False},
    "falcon's rule": {"pre_tokenizer": seq({"type": "Punctuation", "behavior": "Contiguous"}, BYTES, {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")), "model.ignore_merges": False},
    "white space": {"pre_tokenizer": seq({"type": "WhitespaceSplit"}, PLAIN)},
    "no pre-tokenizer": {"pre_tokenizer": None},
    "another pattern": {"pre_tokenizer": seq(split(r"\s+|\S+"), PLAIN)},
    "removed": {"pre_tokenizer": seq(split(LLAMA3, behavior="Removed"), PLAIN)},
    "merged with the next": {"pre_tokenizer": seq(split(LLAMA3, behavior="MergedWithNext"), PLAIN)},
    "inverted": {"pre_tokenizer": seq(split(LLAMA3, invert=True), PLAIN)},
    "both split and regex": {"pre_tokenizer": seq(split(LLAMA3), BYTES)},
    "nfc": {"normalizer": {"type": "NFC"}},
    "nfd": {"normalizer": {"type": "NFD"}},
    "nfkc": {"normalizer": {"type": "NFKC"}},
    "lower case": {"normalizer": {"type": "Lowercase"}},
    "stripped": {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    "replaced": {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}},
    "prepended": {"normalizer": {"type": "Prepend", "prepend": "x"}},
    "no normalizers": {"normalizer": {"type": "Sequence", "normalizers": []}},
    "two normalizers": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
    "lstrip": {"added_tokens": with_flags(lstrip=True)},
    "rstrip": {"added_tokens": with_flags(rstrip=True)},
    "single word": {"added_tokens": with_flags(single_word=True)},
    "normalized": {"added_tokens": with_flags(normalized=True)},
    "a token of the user's": {"added_tokens": base["added_tokens"] + [added("<tool>", TOP)]},
    "a special token more": {"added_tokens": base["added_tokens"] + [added("<tool>", TOP, True)]},
    "the user's with lstrip": {"added_tokens": base["added_tokens"] + [added("<tool>", TOP, lstrip=True)]},
    "the user's with rstrip": {"added_tokens": base["added_tokens"] + [added("<tool>", TOP, rstrip=True)]},
    "the user's as a word": {"added_tokens": base["added_tokens"] + [added("tool", TOP, single_word=True)]},
    "one that begins another": {"added_tokens": base["added_tokens"] + [added("<tool", TOP), added("<tool>", TOP + 1)]},
    "a word": {"added_tokens": base["added_tokens"] + [added("kitchen", TOP)]},
    "merges ignored": {"model.ignore_merges": True},
    "merges not ignored": {"model.ignore_merges": False},
    "dropout": {"model.dropout": 0.5},
    "no dropout": {"model.dropout": 0.0},
    "byte fallback": {"model.byte_fallback": True},
    "a prefix of subwords": {"model.continuing_subword_prefix": "##"},
    "a suffix of words": {"model.end_of_word_suffix": "</w>"},
    "an unknown token": {"model.unk_token": EOS},
    "truncated": {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}},
    "padded": {"padding": {"strategy": {"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}},
    "merges as text": {"model.merges": [" ".join(m) if isinstance(m, list) else m for m in base["model"]["merges"]]},
    "half of the merges": {"model.merges": base["model"]["merges"][: len(base["model"]["merges"]) // 2]},
}


def main():
    cases = []
    for name, changes in VARIANTS.items():
        variant = copy.deepcopy(base)
        for path, value in changes.items():
            *parents, last = path.split(".")
            place = variant
            for key in parents:
                place = place[key]
            place[last] = value
        case = {"name": name, "changes": changes}
        if name == "merges as text":
            case["changes"] = {"model.merges": "text"}
        if name == "half of the merges":
            case["changes"] = {"model.merges": "half"}
        try:
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(variant))
            case["ids"] = [tokenizer.encode(text).ids for text in TEXTS]
        except BaseException as e:
            case["error"] = str(e)[:200]
        cases.append(case)
    out = {
        "made_by": "scripts/tokenizer_cases.py",
        "versions": {"python": platform.python_version(), "tokenizers": tokenizers.__version__},
        "base": BASE,
        "texts": TEXTS,
        "cases": cases,
    }
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False)
        f.write("\n")
    print(len(cases), "variants,", sum("error" in c for c in cases), "refused by the library")


main()
