"""Computes a prefix with HuggingFace transformers and writes it as a head-major cartridge.

    python scripts/hf_cartridge.py --model gates/models/bitnet-harness-home-hf \\
        --gguf gates/models/bitnet-harness-home.gguf \\
        --messages '[{"role": "system", "content": "Devices:\\n- lumo: light, kitchen"}]' --out devices.safetensors

The format is docs/formats/cartridge.md. Nothing of the engine is used: keys and values are `past_key_values`
(post-RoPE, rotate-half order), tokens come from the checkpoint's tokenizer, the lock fields from the GGUF
(`--gguf`, hashed by model_hashes.py) or from `harness model inspect --format json` (`--lock`). `--logits` stores what
transformers predicts after the prefix, one F32 tensor `logits` [n_vocab].
"""

import argparse
import hashlib
import json
import os
import sys

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import model_hashes
import numpy
import safetensors
import torch
import transformers
from hf_reference import DTYPES, atomic_save, fail, load
from transformers import AutoTokenizer

LOCK = ["model_id", "model_arch_hash", "model_weights_hash", "tokenizer_hash", "rope_theta", "rope_scaling", "rope_type"]


def find_lock(document):
    """The object of an inspection document that carries all lock fields, wherever it stands in it."""
    if isinstance(document, dict):
        if all(key in document for key in LOCK):
            return {key: str(document[key]) for key in LOCK}
        for value in document.values():
            found = find_lock(value)
            if found:
                return found
    return None


def lock_of(path):
    """The lock fields computed from the GGUF itself."""
    gguf = model_hashes.Gguf(path)
    arch = gguf.get("general.architecture").decode()
    return {
        "model_id": gguf.get("general.name", b"").decode(),
        "model_arch_hash": model_hashes.sha256(model_hashes.arch_text(gguf).encode()),
        "model_weights_hash": model_hashes.weights_hash(gguf),
        "tokenizer_hash": model_hashes.tokenizer_hash(gguf),
        "rope_theta": str(gguf.get(arch + ".rope.freq_base", 10000.0)),
        "rope_scaling": model_hashes.rope_scaling(gguf, arch),
        "rope_type": "norm" if arch == "llama" else "neox",
    }


def prefix_ids(args, tokenizer):
    if args.tokens:
        with open(args.tokens, encoding="utf-8") as file:
            return [int(word) for word in file.read().replace(",", " ").split()]
    if args.messages:
        text = tokenizer.apply_chat_template(json.loads(args.messages), tokenize=False, add_generation_prompt=False)
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    with open(args.text, encoding="utf-8") as file:
        return tokenizer(file.read(), add_special_tokens=True)["input_ids"]


@torch.no_grad()
def prefill(model, ids):
    """([(k, v)] per layer, each [n_head_kv, p, head_dim] f32; logits of the last position)."""
    result = model(input_ids=torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    layers = [(layer.keys[0].float(), layer.values[0].float()) for layer in result.past_key_values.layers]
    return layers, result.logits[0, -1].float()


def stored(tensor, kind, name):
    """Contiguous copy in the cartridge's type; a value that the type cannot hold is an error, not an infinity."""
    out = tensor.to({"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[kind]).contiguous()
    if not torch.isfinite(out).all():
        head, row, column = (~torch.isfinite(out)).nonzero()[0].tolist()
        fail(f"{name}: head {head}, position {row}, element {column} does not fit {kind}")
    return out


def raw(tensor):
    return tensor.view(torch.uint8).numpy().tobytes()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory of a HuggingFace checkpoint")
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument("--gguf", help="the GGUF that the cartridge is locked to")
    owner.add_argument("--lock", help="JSON of `harness model inspect --format json` for that GGUF")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="file with the prefix text (BOS is put in front)")
    source.add_argument("--tokens", help="file with token ids, used as they are")
    source.add_argument("--messages", help="JSON chat messages, rendered without a generation prompt")
    parser.add_argument("--out", required=True)
    parser.add_argument("--type", choices=["f16", "bf16", "f32"], default="f16")
    parser.add_argument("--run", choices=sorted(DTYPES), default="fp32", help="dtype of the computation")
    parser.add_argument("--max-tokens", type=int, help="keep only the first tokens")
    parser.add_argument("--logits", help="also write the logits after the prefix here (safetensors, F32 [n_vocab])")
    parser.add_argument("--title", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--force", action="store_true", help="overwrite --out")
    return parser.parse_args()


def main():
    args = arguments()
    if os.path.exists(args.out) and not args.force:
        fail(f"{args.out} exists; --force overwrites it")
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    if args.gguf:
        lock = lock_of(args.gguf)
    else:
        with open(args.lock, encoding="utf-8") as file:
            lock = find_lock(json.load(file))
        if lock is None:
            fail(f"{args.lock}: no object with all of {', '.join(LOCK)}")
    if lock["rope_type"] != "neox":
        fail(f"rope_type {lock['rope_type']}: transformers' BitNet keys are in neox (rotate-half) order")
    tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    ids = prefix_ids(args, tokenizer)[: args.max_tokens]
    if not ids:
        fail("the prefix has no token")
    model = load(args.model, DTYPES[args.run])
    if len(ids) > model.config.max_position_embeddings:
        fail(f"{len(ids)} tokens, the model takes {model.config.max_position_embeddings}")
    layers, logits = prefill(model, ids)

    tensors = {
        "tokens": torch.tensor(ids, dtype=torch.int32),
        "positions": torch.arange(len(ids), dtype=torch.int32),
    }
    for number, (k, v) in enumerate(layers):
        tensors[f"layer.{number}.k"] = stored(k, args.type, f"layer.{number}.k")
        tensors[f"layer.{number}.v"] = stored(v, args.type, f"layer.{number}.v")
    order = [f"layer.{number}.{which}" for which in "kv" for number in range(len(layers))]
    digests = b"".join(hashlib.sha256(raw(tensors[name])).digest() for name in order)
    metadata = {
        "format": "bitnet-cartridge/1",
        "layout": "head-major",
        **lock,
        "n_tokens": str(len(ids)),
        "first_pos": "0",
        "type_k": args.type,
        "type_v": args.type,
        "tokens_hash": "sha256:" + hashlib.sha256(raw(tensors["tokens"])).hexdigest(),
        "payload_hash": "sha256:" + hashlib.sha256(digests).hexdigest(),
        "created_by": f"hf_cartridge.py, transformers {transformers.__version__}, torch {torch.__version__}, "
                      f"safetensors {safetensors.__version__}, numpy {numpy.__version__}, {args.run}",
    }
    if args.title:
        metadata["title"] = args.title
    atomic_save(tensors, args.out, metadata)
    if args.logits:
        about = {"format": "bitnet-next-logits/1", "after": metadata["tokens_hash"], "run": args.run}
        atomic_save({"logits": logits}, args.logits, about)
    print(f"{args.out}: {len(ids)} tokens, {len(layers)} layers, {os.path.getsize(args.out)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
