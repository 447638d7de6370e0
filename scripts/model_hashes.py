#!/usr/bin/env python3
"""Recompute the hashes that lock a cartridge to a GGUF model (docs/formats/hashes.md).

Needs nothing but Python 3.8. Written from the description, not from the Rust code, so that the
two check each other; it trusts its input and is no validating reader.

    python3 scripts/model_hashes.py model.gguf
"""

import hashlib
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# ggml type: (elements in a block, bytes in a block); i2_s (36) apart.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    31: (32, 18), 32: (32, 18), 33: (32, 18), 34: (256, 54), 35: (256, 66),
}
T = "tokenizer.ggml."


class Gguf:
    def __init__(self, path):
        self.file = open(path, "rb")
        assert self.file.read(4) == b"GGUF"
        _version, n_tensors, n_keys = self.unpack("IQQ")
        self.keys = {}
        for _ in range(n_keys):
            key = self.string().decode()
            self.keys[key] = self.value(self.unpack("I")[0])
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.string()
            (n_dims,) = self.unpack("I")
            dims = list(self.unpack("%dQ" % n_dims)) + [1] * (4 - n_dims)
            ty, offset = self.unpack("IQ")
            elements = dims[0] * dims[1] * dims[2] * dims[3]
            if ty == 36:
                size = elements // 4 + 32
            else:
                size = elements // BLOCKS[ty][0] * BLOCKS[ty][1]
            self.tensors[name] = (ty, dims, offset, size)
        alignment = self.get("general.alignment", 32)
        self.data = -(-self.file.tell() // alignment) * alignment

    def unpack(self, form):
        return struct.unpack("<" + form, self.file.read(struct.calcsize("<" + form)))

    def string(self):
        return self.file.read(self.unpack("Q")[0])

    def value(self, ty):
        """(value type, value); strings stay bytes, arrays are ((9, element type), list)."""
        if ty == 8:
            return ty, self.string()
        if ty == 9:
            element, n = self.unpack("IQ")
            if element == 8:
                return (9, 8), [self.string() for _ in range(n)]
            return (9, element), list(self.unpack("%d%s" % (n, SCALARS[element])))
        return ty, self.unpack(SCALARS[ty])[0]

    def get(self, key, default=None):
        return self.keys[key][1] if key in self.keys else default

    def read(self, name):
        _, _, offset, size = self.tensors[name]
        self.file.seek(self.data + offset)
        while size:
            chunk = self.file.read(min(size, 1 << 22))
            yield chunk
            size -= len(chunk)


def bits(value):
    return "f32:" + struct.pack(">f", value).hex()


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def rope_scaling(g, arch):
    get = lambda key, default=None: g.get(arch + ".rope." + key, default)
    kind = get("scaling.type", b"linear").decode()
    factor = get("scaling.factor", get("scale_linear", 0.0))
    factor = 1.0 if factor == 0.0 or kind == "none" else factor
    if kind == "linear" and factor == 1.0:
        kind = "none"
    parts = [kind]
    if kind != "none":
        parts.append("factor=" + bits(factor))
    if kind == "yarn":
        context = get("scaling.original_context_length", g.get(arch + ".context_length"))
        parts.append("original_context=%d" % context)
    if get("scaling.attn_factor", 1.0) != 1.0:
        parts.append("attn_factor=" + bits(get("scaling.attn_factor")))
    if b"rope_freqs.weight" in g.tensors:
        parts.append("freq_factors=" + sha256(b"".join(g.read(b"rope_freqs.weight"))))
    return ",".join(parts)


def arch_text(g):
    arch = g.get("general.architecture").decode()
    get = lambda key, default=None: g.get(arch + "." + key, default)
    one = lambda value: value[0] if isinstance(value, list) else value
    n_head = one(get("attention.head_count"))
    head_dim = get("attention.key_length", get("embedding_length") // n_head)
    lines = {
        "architecture": arch,
        "head_dim": head_dim,
        "n_embd": get("embedding_length"),
        "n_ff": one(get("feed_forward_length")),
        "n_head": n_head,
        "n_head_kv": one(get("attention.head_count_kv", n_head)),
        "n_layer": get("block_count"),
        "n_vocab": len(g.get(T + "tokens")),
        "norm_eps": bits(get("attention.layer_norm_rms_epsilon")),
        "rope.dimension_count": get("rope.dimension_count", head_dim),
        "rope.freq_base": bits(get("rope.freq_base", 10000.0)),
        "rope.scaling": rope_scaling(g, arch),
        "rope.type": "norm" if arch == "llama" else "neox",
    }
    return "bitnet-harness.arch/1\n" + "".join("%s=%s\n" % item for item in sorted(lines.items()))


def tokenizer_hash(g):
    u64 = lambda n: struct.pack("<Q", n)
    frame = lambda data: u64(len(data)) + data
    h = hashlib.sha256(b"bitnet-harness.tokenizer/1\n")
    h.update(frame(g.get(T + "model", b"")))
    h.update(frame(g.get(T + "pre", b"")))
    tokens = g.get(T + "tokens", [])
    h.update(u64(len(tokens)) + b"".join(map(frame, tokens)))
    types = g.get(T + "token_type", [])
    h.update(u64(len(types)) + struct.pack("<%dI" % len(types), *(t & 0xFFFFFFFF for t in types)))
    scores = g.get(T + "scores", [])
    h.update(u64(len(scores)) + struct.pack("<%df" % len(scores), *scores))
    merges = g.get(T + "merges", [])
    h.update(u64(len(merges)) + b"".join(map(frame, merges)))
    lines = []
    for key, (ty, value) in g.keys.items():
        if key.startswith(T) and ty in (4, 7):
            lines.append("%s=%s\n" % (key, str(value).lower()))
    h.update(frame("".join(sorted(lines)).encode()))
    return "sha256:" + h.hexdigest()


def weights_hash(g):
    h = hashlib.sha256(b"bitnet-harness.weights/1\n")
    for name in sorted(g.tensors):
        ty, dims, _, size = g.tensors[name]
        h.update(struct.pack("<Q", len(name)) + name)
        h.update(struct.pack("<I4QQ", ty, *dims, size))
        for chunk in g.read(name):
            h.update(chunk)
    return "sha256:" + h.hexdigest()


def file_hash(path):
    h = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 22), b""):
            h.update(chunk)
    return "sha256:" + h.hexdigest()


def main():
    g = Gguf(sys.argv[1])
    arch = g.get("general.architecture").decode()
    print("model_arch_hash    " + sha256(arch_text(g).encode()))
    print("model_weights_hash " + weights_hash(g))
    print("tokenizer_hash     " + tokenizer_hash(g))
    print("file_hash          " + file_hash(sys.argv[1]))
    print("rope_scaling       " + rope_scaling(g, arch))


if __name__ == "__main__":
    main()
