"""Runs HuggingFace transformers on the prompt suite and writes `reference.safetensors` for gate 2.

    python scripts/hf_reference.py --model gates/models/bitnet-harness-home-hf \\
        --gguf gates/models/bitnet-harness-home.gguf --prompts gates/prompts/suite.jsonl \\
        --out gates/references/bitnet-harness-home.safetensors

The file is described in docs/formats/reference.md; docs/how-to/reference.md says how to make one for
microsoft/BitNet-b1.58-2B-4T and what it needs.
"""

import argparse
import gc
import hashlib
import json
import os
import platform
import re
import sys
import tempfile

# Before torch is imported: transformers decorates its quantizer with torch.compile; eager code gives numbers that
# do not depend on a C++ compiler.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import numpy
import safetensors
import tokenizers
import torch
import transformers
from bitnet_model import ternary
from safetensors.torch import save
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.bitnet import AutoBitLinear, BitLinear, unpack_weights

LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALL_VOCABULARY = 4096


def fail(message):
    print(f"hf_reference: {message}", file=sys.stderr)
    sys.exit(2)


def file_sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_prompts(path, limit):
    prompts, seen = [], set()
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            prompt = json.loads(line)
            ident, kind = prompt.get("id", ""), prompt.get("kind")
            if not re.fullmatch(r"[a-z0-9-]{1,48}", ident) or ident in seen:
                fail(f"{path}:{number}: id {ident!r} is repeated or not [a-z0-9-]{{1,48}}")
            if kind not in ("text", "chat") or not prompt.get("text" if kind == "text" else "messages"):
                fail(f"{path}:{number}: {ident} needs kind text with `text`, or chat with `messages`")
            seen.add(ident)
            prompts.append(prompt)
    if not prompts:
        fail(f"{path}: no prompt")
    return prompts[:limit]


def tokenize(prompt, tokenizer):
    """(text, ids): BOS in front of a plain text; a chat prompt brings its own."""
    if prompt["kind"] == "text":
        text = prompt["text"]
        for special in tokenizer.all_special_tokens:
            if special in text:
                fail(f"{prompt['id']}: a text prompt may not contain the special token {special}")
        ids = tokenizer(text, add_special_tokens=True)["input_ids"]
        if tokenizer.bos_token_id is not None and ids[:1] != [tokenizer.bos_token_id]:
            ids = [tokenizer.bos_token_id, *ids]
        return text, ids
    text = tokenizer.apply_chat_template(prompt["messages"], tokenize=False, add_generation_prompt=True)
    bos = tokenizer.bos_token or ""
    if not text.startswith(bos):
        text = bos + text
    return text, tokenizer(text, add_special_tokens=False)["input_ids"]


def codes_and_scale(module):
    """(codes in {-1, 0, 1} as int8, scale) of a ternary linear, whichever way its checkpoint holds it."""
    if isinstance(module, BitLinear):
        return unpack_weights(module.weight, torch.int8), 1.0 / module.weight_scale.float().reshape(())
    if module.online_quant:
        return ternary(module.weight)
    return module.weight.detach().to(torch.int8), module.weight_scale.float().reshape(())


def load(path, dtype):
    """The model in eval mode; refuses a checkpoint whose linears would not be computed as ternary ones."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa", local_files_only=True)
    # Unpacked ternary weights come in the checkpoint's type, whatever was asked for.
    model.to(dtype).eval()
    for layer in range(model.config.num_hidden_layers):
        for name in LINEARS:
            module = model.get_submodule(f"model.layers.{layer}.{name}")
            if not isinstance(module, (AutoBitLinear, BitLinear)):
                fail(
                    f"{path}: layer {layer} {name} is {type(module).__name__}, no ternary linear: config.json needs a "
                    'quantization_config, such as {"quant_method": "bitnet", "linear_class": "autobitlinear", '
                    '"quantization_mode": "online"} for bf16 master weights'
                )
            if isinstance(module, AutoBitLinear) and not module.online_quant:
                if not torch.isin(module.weight, torch.tensor([-1.0, 0.0, 1.0], dtype=module.weight.dtype)).all():
                    fail(f"{path}: layer {layer} {name}: weights of an offline checkpoint are -1, 0 and 1")
    return model


def fingerprint(model):
    """(`ternary_sha256`, scales): see docs/formats/reference.md. The model must be loaded in float32."""
    digest, scales = hashlib.sha256(), []
    for layer in range(model.config.num_hidden_layers):
        for name in LINEARS:
            codes, scale = codes_and_scale(model.get_submodule(f"model.layers.{layer}.{name}"))
            digest.update((codes + 1).to(torch.uint8).numpy().tobytes())
            scales.append(scale)
    return digest.hexdigest(), torch.stack(scales)


def top(logits, k):
    """Largest k per row, falling, equal values by rising id."""
    order = torch.sort(logits, dim=-1, descending=True, stable=True)
    return order.indices[:, :k].to(torch.int32).contiguous(), order.values[:, :k].contiguous()


@torch.no_grad()
def run(model, ids, k, full_rows):
    """Tensors of one prompt under one run, by the names of the format."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    if not torch.isfinite(logits).all():
        fail("the model gave a logit that is not finite")
    norm = torch.logsumexp(logits.double(), -1)
    indices, values = top(logits, k)
    following = torch.tensor(ids[1:], dtype=torch.long)
    out = {
        "logsumexp": norm.float(),
        "top.ids": indices,
        "top.logits": values,
        "next": (logits[:-1].double().gather(1, following[:, None])[:, 0] - norm[:-1]).float(),
    }
    rows = list(range(max(0, len(ids) - full_rows), len(ids)))
    if rows:
        out["full.positions"] = torch.tensor(rows, dtype=torch.int32)
        out["full.logits"] = logits[rows].contiguous()
    return out


def canonical(data):
    """The same safetensors file with a sorted header: the library writes metadata in a random order."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    ordered = {"__metadata__": dict(sorted(metadata.items()))}
    ordered |= dict(sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0])))
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def atomic_save(tensors, path, metadata):
    """Temporary file beside the target, then rename: a cut run leaves no half file."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(canonical(save(tensors, metadata=metadata)))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory of a HuggingFace checkpoint")
    parser.add_argument("--prompts", required=True, help="prompt suite, one JSON object a line")
    parser.add_argument("--out", required=True)
    parser.add_argument("--gguf", help="the GGUF of the same model; its hash goes into the file")
    parser.add_argument("--name", help="model name (default: name of the directory)")
    parser.add_argument("--runs", default="fp32,bf16", help="in order; the first is the one to judge by")
    parser.add_argument("--top-k", type=int, help="top logits of the first run (40 for a small vocabulary, else 256)")
    parser.add_argument("--top-k-other", type=int, help="top logits of the other runs (8, else 64)")
    parser.add_argument("--full-rows", type=int, default=1,
                        help=f"whole rows per prompt, last positions, vocabulary <= {SMALL_VOCABULARY} only")
    parser.add_argument("--threads", type=int, default=1, help="1 makes the numbers independent of the core count")
    parser.add_argument("--limit", type=int, help="only the first prompts of the suite")
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    runs = args.runs.split(",")
    if not runs or len(set(runs)) != len(runs) or any(r not in DTYPES for r in runs):
        fail(f"--runs {args.runs}: fp32, bf16 or both")
    prompts = read_prompts(args.prompts, args.limit)
    tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    tensors, encoded = {}, []
    for prompt in prompts:
        text, ids = tokenize(prompt, tokenizer)
        encoded.append((prompt["id"], ids))
        tensors[f"{prompt['id']}.text"] = torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8)
        tensors[f"{prompt['id']}.tokens"] = torch.tensor(ids, dtype=torch.int32)

    top_k, config, identity = {}, None, None
    # The identity is defined by f32 arithmetic: a float32 load even when only bf16 is run.
    for name in [*runs, *([] if "fp32" in runs else ["fp32"])]:
        model = load(args.model, DTYPES[name])
        config = model.config
        if name == "fp32":
            identity, scales = fingerprint(model)
            tensors["scales"] = scales
        if name in runs:
            small = config.vocab_size <= SMALL_VOCABULARY
            first = name == runs[0]
            k = (args.top_k or (40 if small else 256)) if first else (args.top_k_other or (8 if small else 64))
            top_k[name] = min(k, config.vocab_size)
            for index, (ident, ids) in enumerate(encoded, 1):
                if len(ids) > config.max_position_embeddings:
                    fail(f"{ident}: {len(ids)} tokens, the model takes {config.max_position_embeddings}")
                print(f"{name} {index}/{len(encoded)} {ident} ({len(ids)} tokens)", file=sys.stderr)
                for what, tensor in run(model, ids, top_k[name], args.full_rows if small and first else 0).items():
                    tensors[f"{ident}.{name}.{what}"] = tensor
        del model
        gc.collect()

    heads = config.num_attention_heads
    files = sorted(f for f in os.listdir(args.model) if f == "config.json" or f.endswith(".safetensors"))
    flags = [os.path.basename(sys.argv[0])]
    for word in sys.argv[1:]:
        flags.append(word if word.startswith("--") else os.path.basename(word.rstrip("/")))
    rope = getattr(config, "rope_parameters", None) or {}
    metadata = {
        "format": "bitnet-reference/1",
        "engine": "hf",
        "runs": ",".join(runs),
        "prompts": json.dumps([ident for ident, _ in encoded]),
        "prompts_sha256": file_sha256(args.prompts),
        "top_k": json.dumps(top_k, sort_keys=True),
        "model_name": args.name or os.path.basename(os.path.abspath(args.model)),
        "model_files_sha256": json.dumps({f: file_sha256(os.path.join(args.model, f)) for f in files}, sort_keys=True),
        "tokenizer_sha256": file_sha256(os.path.join(args.model, "tokenizer.json")),
        "ternary_sha256": identity,
        "arch": json.dumps(
            {
                "n_layer": config.num_hidden_layers,
                "n_embd": config.hidden_size,
                "n_head": heads,
                "n_head_kv": config.num_key_value_heads,
                "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
                "n_ff": config.intermediate_size,
                "n_vocab": config.vocab_size,
                "n_ctx_train": config.max_position_embeddings,
                "rope_theta": rope.get("rope_theta", getattr(config, "rope_theta", None)),
                "rms_eps": config.rms_norm_eps,
            },
            sort_keys=True,
        ),
        "versions": json.dumps(
            {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "tokenizers": tokenizers.__version__,
                "safetensors": safetensors.__version__,
                "numpy": numpy.__version__,
            },
            sort_keys=True,
        ),
        "threads": str(args.threads),
        "command": " ".join(flags),
    }
    if args.gguf:
        metadata["gguf_sha256"] = file_sha256(args.gguf)
    atomic_save(tensors, args.out, metadata)
    print(f"{args.out}: {len(encoded)} prompts, {sum(len(i) for _, i in encoded)} tokens, "
          f"{os.path.getsize(args.out)} bytes, sha256 {file_sha256(args.out)}", file=sys.stderr)


if __name__ == "__main__":
    main()
