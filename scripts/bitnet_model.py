"""The trained architecture: HuggingFace's `BitNetForCausalLM` with online-quantized ternary linears."""

import os

# The quantizer functions in transformers are decorated with torch.compile. Eager execution keeps the numbers
# independent of the C++ compiler that inductor would call.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
from torch import nn
from transformers import BitNetConfig, BitNetForCausalLM
from transformers.integrations.bitnet import AutoBitLinear

QUANTIZATION = {
    "quant_method": "bitnet",
    "linear_class": "autobitlinear",
    "quantization_mode": "online",
    "modules_to_not_convert": ["lm_head"],
}


def configuration(vocab, special, layers=4, hidden=256, ffn=512, heads=4, kv_heads=2, context=1024):
    if hidden % 128 or ffn % 128:
        raise ValueError("I2_S rows are packed by 128: hidden and ffn must be multiples of 128")
    if (hidden // heads * kv_heads) % 4:
        raise ValueError("I2_S needs a row count that is a multiple of 4")
    return BitNetConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_act="relu2",
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        bos_token_id=special["<|begin_of_text|>"],
        eos_token_id=[special["<|end_of_text|>"], special["<|eot_id|>"]],
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        dtype="float32",
    )


def new_model(config, seed):
    """A fresh model whose seven linears per layer are `AutoBitLinear(online_quant=True)`."""
    torch.manual_seed(seed)
    model = BitNetForCausalLM(config)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name != "lm_head":
            linear = AutoBitLinear(module.in_features, module.out_features, bias=False, online_quant=True)
            linear.weight = module.weight
            model.set_submodule(name, linear)
    return model


def ternary(weight):
    """(codes in {-1, 0, 1} as int8, scale as f32) with the arithmetic of transformers' `WeightQuant`.

    `WeightQuant` computes `round(w * s).clamp(-1, 1) / s` with `s = 1 / mean|w|`: every non-zero value it yields
    is `+-(1 / s)`, which is what the scale here is.
    """
    weight = weight.detach().float()
    s = 1.0 / weight.abs().mean().clamp_(min=1e-5)
    codes = (weight * s).round().clamp(-1, 1)
    return codes.to(torch.int8), (torch.ones(()) / s).float()
