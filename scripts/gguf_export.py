"""Writes a trained model as GGUF: f32 (dequantized ternary values) or I2_S.

The PyPI `gguf` package does not know the engine's tensor type 36 (I2_S), hence this small writer.
Layout of an I2_S tensor of n weights, as the engine's x86 kernels read it: weight w in {-1, 0, 1} is the code
w + 1 in two bits; in a block of 128, weight j sits in byte j mod 32 at bit 6 - 2 * (j div 32). After n / 4 bytes
follow one f32 scale and padding, 32 bytes together.
"""

import struct

import numpy as np
import torch

from bitnet_model import ternary

ALIGNMENT = 32
F32, F16, I2_S = 0, 1, 36
FILE_TYPE = {"f32": 0, "i2_s": 40}
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TOKEN_NORMAL, TOKEN_CONTROL = 1, 3


def packed_i2_s(codes, scale):
    """Bytes of one I2_S tensor. `codes`: int8 [rows, columns] in {-1, 0, 1}; `scale`: the magnitude of a one."""
    rows, columns = codes.shape
    if columns % 128 or rows % 4:
        raise ValueError(f"I2_S takes row lengths in 128s and row counts in 4s, not {rows} x {columns}")
    blocks = (codes.astype(np.uint8) + 1).astype(np.uint8).reshape(-1, 4, 32)
    packed = (blocks[:, 0] << 6) | (blocks[:, 1] << 4) | (blocks[:, 2] << 2) | blocks[:, 3]
    return packed.astype(np.uint8).tobytes() + struct.pack("<f", scale) + bytes(28)


class GgufFile:
    def __init__(self):
        self.header, self.tensors = [], []

    @staticmethod
    def _text(value):
        data = value.encode("utf-8")
        return struct.pack("<Q", len(data)) + data

    def key(self, name, kind, value):
        self.header.append(self._text(name) + struct.pack("<I", kind) + self._value(kind, value))

    def array(self, name, kind, values):
        body = b"".join(self._value(kind, v) for v in values)
        self.header.append(self._text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body)

    def _value(self, kind, value):
        if kind == STRING:
            return self._text(value)
        return struct.pack({U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}[kind], value)

    def tensor(self, name, kind, shape, data):
        """`shape` in the order of PyTorch; GGUF states it fastest dimension first."""
        self.tensors.append((name, kind, tuple(reversed(shape)), data))

    def write(self, path):
        out = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.header)) + b"".join(self.header)
        offset = 0
        for name, kind, shape, data in self.tensors:
            out += self._text(name) + struct.pack("<I", len(shape))
            out += b"".join(struct.pack("<Q", d) for d in shape) + struct.pack("<IQ", kind, offset)
            offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
        out += bytes(-len(out) % ALIGNMENT)
        with open(path, "wb") as file:
            file.write(out)
            for _, _, _, data in self.tensors:
                file.write(data + bytes(-len(data) % ALIGNMENT))


LINEARS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMS = {
    "input_layernorm": "attn_norm", "self_attn.attn_sub_norm": "attn_sub_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.ffn_sub_norm": "ffn_sub_norm",
}


def export(path, state, config, tokenizer_parts, chat_template, name, extra, kind="i2_s"):
    """`state`: the checkpoint's tensors as stored. Norms go out as f32, the embedding as f16, linears as `kind`."""
    tokens, merges, special = tokenizer_parts
    arch = "bitnet-b1.58"
    gguf = GgufFile()
    gguf.key("general.architecture", STRING, arch)
    gguf.key("general.name", STRING, name)
    gguf.key("general.file_type", U32, FILE_TYPE[kind])
    gguf.key("general.quantization_version", U32, 2)
    for key, value in extra.items():
        gguf.key(key, STRING, value)
    head_dim = config.hidden_size // config.num_attention_heads
    for key, value in {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": head_dim,
        "vocab_size": config.vocab_size,
    }.items():
        gguf.key(f"{arch}.{key}", U32, value)
    gguf.key(f"{arch}.rope.freq_base", FLOAT, config.rope_parameters["rope_theta"])
    gguf.key(f"{arch}.attention.layer_norm_rms_epsilon", FLOAT, config.rms_norm_eps)

    controls = set(special)
    gguf.key("tokenizer.ggml.model", STRING, "gpt2")
    gguf.key("tokenizer.ggml.pre", STRING, "llama-bpe")
    gguf.array("tokenizer.ggml.tokens", STRING, tokens)
    gguf.array("tokenizer.ggml.token_type", I32, [TOKEN_CONTROL if t in controls else TOKEN_NORMAL for t in tokens])
    gguf.array("tokenizer.ggml.merges", STRING, merges)
    gguf.key("tokenizer.ggml.bos_token_id", U32, special["<|begin_of_text|>"])
    gguf.key("tokenizer.ggml.eos_token_id", U32, special["<|end_of_text|>"])
    gguf.key("tokenizer.ggml.eot_token_id", U32, special["<|eot_id|>"])
    gguf.key("tokenizer.ggml.add_bos_token", BOOL, True)
    gguf.key("tokenizer.ggml.add_eos_token", BOOL, False)
    gguf.key("tokenizer.chat_template", STRING, chat_template)

    def plain(target, source, dtype):
        array = state[source].float().numpy().astype(dtype)
        gguf.tensor(target, F16 if dtype == np.float16 else F32, array.shape, array.tobytes())

    plain("token_embd.weight", "model.embed_tokens.weight", np.float16 if kind == "i2_s" else np.float32)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for source, target in NORMS.items():
            plain(f"blk.{layer}.{target}.weight", f"{prefix}{source}.weight", np.float32)
        for source, target in LINEARS.items():
            codes, scale = ternary(state[f"{prefix}{source}.weight"])
            full = f"blk.{layer}.{target}.weight"
            if kind == "i2_s":
                gguf.tensor(full, I2_S, codes.shape, packed_i2_s(codes.numpy(), scale.item()))
            else:
                gguf.tensor(full, F32, codes.shape, (codes.float() * scale).numpy().tobytes())
    plain("output_norm.weight", "model.norm.weight", np.float32)
    gguf.write(path)


def exact_in_f16(tensor):
    """bf16 copy whose values f16 holds exactly: what f16 would round away (below 2^-17) becomes zero."""
    half = tensor.detach().float().to(torch.bfloat16).float()
    half = torch.where(half.abs() < 2.0**-17, torch.zeros_like(half), half)
    if not torch.equal(half.half().float(), half):
        raise ValueError("an embedding value is outside f16's range")
    return half.to(torch.bfloat16)
