"""Writes a small random HuggingFace checkpoint of a ternary family, to check `harness model convert` with.

    python scripts/random_checkpoint.py --family llama-packed --out /tmp/llama-packed

| family | like | linears |
|---|---|---|
| bitnet-online | BitNet-b1.58-2B-4T-bf16 | bf16 master weights, autobitlinear, online |
| bitnet-packed | BitNet-b1.58-2B-4T | packed U8 and weight_scale, autobitlinear, offline (times weight_scale) |
| llama-packed | Llama3-8B-1.58, Falcon3-1.58bit | packed U8 and weight_scale, bitlinear (divided by weight_scale) |
| llama-online | Falcon-E as master weights | bf16, autobitlinear, online |
| falcon-e-packed | Falcon-E | packed U8, autobitlinear, offline, untied output, head size that is no hidden / heads |

The tokenizer is that of the trained model in gates/models unless `--tokenizer` names another folder. `--shards` splits
the file and writes an index, `--llama3-rope` stretches the rotary frequencies as Llama 3.1 does.
"""

import argparse
import json
import os
import shutil

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
from safetensors.torch import save_file
from transformers import BitNetConfig, BitNetForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.bitnet import pack_weights

from bitnet_model import ternary

TOKENIZER = os.path.join(os.path.dirname(__file__), "../gates/models/bitnet-harness-home-hf")
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FAMILIES = ("bitnet-online", "bitnet-packed", "llama-packed", "llama-online", "falcon-e-packed")


def configuration(family, vocab, llama3_rope):
    common = dict(
        vocab_size=vocab, hidden_size=256, intermediate_size=768, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5,
    )
    if family.startswith("bitnet"):
        return BitNetConfig(
            **common, hidden_act="relu2", tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        )
    if family == "falcon-e-packed":
        common |= {"head_dim": 128, "num_key_value_heads": 1}
    rope = {"rope_type": "default", "rope_theta": 1000042.0}
    if llama3_rope:
        rope = {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
        }
    return LlamaConfig(
        **common, hidden_act="silu", tie_word_embeddings=family == "llama-online", rope_parameters=rope,
    )


def quantization(family):
    if family.endswith("online"):
        return {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    if family == "llama-packed":
        return {"quant_method": "bitnet"}
    return {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}


def state(model, family):
    out = {}
    for name, tensor in model.state_dict().items():
        part = name.split(".")[-2] if "." in name else ""
        if model.config.tie_word_embeddings and name == "lm_head.weight":
            continue
        if part not in LINEARS or family.endswith("online"):
            out[name] = tensor.to(torch.bfloat16).contiguous()
            continue
        codes, scale = ternary(tensor)
        if family == "llama-packed":
            scale = 1 / scale
        out[name] = pack_weights(codes.float()).contiguous()
        out[name + "_scale"] = scale.reshape(1).to(torch.bfloat16)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--tokenizer", default=TOKENIZER, help="folder with tokenizer.json")
    parser.add_argument("--llama3-rope", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.tokenizer, "tokenizer.json"), encoding="utf-8") as file:
        tokens = json.load(file)
    added = {t["content"]: t["id"] for t in tokens["added_tokens"]}
    vocab = 1 + max(*tokens["model"]["vocab"].values(), *added.values())
    config = configuration(args.family, vocab, args.llama3_rope)
    config.bos_token_id = added["<|begin_of_text|>"]
    config.eos_token_id = [added["<|end_of_text|>"], added["<|eot_id|>"]]
    torch.manual_seed(args.seed)
    model = (BitNetForCausalLM if args.family.startswith("bitnet") else LlamaForCausalLM)(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.uniform_(0.5, 1.5)
            elif "embed" in name or "lm_head" in name:
                tensor.normal_(0, 0.06)
    tensors = state(model, args.family)
    names = sorted(tensors)
    if args.shards == 1:
        save_file(tensors, os.path.join(args.out, "model.safetensors"), metadata={"format": "pt"})
    else:
        index = {}
        for shard in range(args.shards):
            file = f"model-{shard + 1:05}-of-{args.shards:05}.safetensors"
            mine = {n: tensors[n] for n in names[shard :: args.shards]}
            save_file(mine, os.path.join(args.out, file), metadata={"format": "pt"})
            index |= dict.fromkeys(mine, file)
        with open(os.path.join(args.out, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"metadata": {}, "weight_map": index}, file, indent=1)
    settings = config.to_dict() | {
        "architectures": [type(model).__name__],
        "dtype": "bfloat16",
        "quantization_config": quantization(args.family) | {"modules_to_not_convert": ["lm_head"]},
    }
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file, indent=1)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if os.path.exists(os.path.join(args.tokenizer, file)):
            shutil.copy(os.path.join(args.tokenizer, file), args.out)


if __name__ == "__main__":
    main()
