"""Trains the suite's ternary model from nothing and writes every artefact. See docs/how-to/train.md.

    python scripts/train_model.py --out build/model

Same seed, same versions and same thread count give the same corpus, tokenizer and (on one machine) weights.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import bitnet_model
import corpus
import gguf_export
import home_tokenizer
import torch
import torch.distributed
import torch.nn.functional as F
from tokenizers import Tokenizer

NAME = "bitnet-harness-home"
LICENCE = "MIT OR Apache-2.0"
IGNORE = -100
# Shapes of the held-out samples (order of corpus.SHAPES); the same whatever mix is trained on.
HELD_OUT_MIX = [14, 36, 34, 10, 5, 0, 1]


class Coder:
    """Turns samples into token ids exactly as the chat template would, and marks the answers."""

    def __init__(self, bpe, special):
        self.bpe, self.special = bpe, special

    def ids(self, text):
        return self.bpe.encode(text, add_special_tokens=False).ids

    def header(self, role):
        s = self.special
        return [s["<|start_header_id|>"], *self.ids(role), s["<|end_header_id|>"], *self.ids("\n\n")]

    def encode(self, sample):
        """(ids, labels); labels are IGNORE except on stories and on assistant turns (end of turn included)."""
        bos, eot = self.special["<|begin_of_text|>"], self.special["<|eot_id|>"]
        if sample["kind"] == "text":
            ids = [bos, *self.ids(sample["text"]), self.special["<|end_of_text|>"]]
            return ids, [IGNORE, *ids[1:]]
        ids, labels = [bos], [IGNORE]
        for role, content in sample["messages"]:
            head, body = self.header(role), [*self.ids(corpus.plain(content)), eot]
            ids += head + body
            labels += [IGNORE] * len(head) + (body if role == "assistant" else [IGNORE] * len(body))
        return ids, labels

    def prompt(self, sample):
        """ids up to the last assistant turn, ready to generate."""
        ids = [self.special["<|begin_of_text|>"]]
        for role, content in sample["messages"][:-1]:
            ids += self.header(role) + self.ids(corpus.plain(content)) + [self.special["<|eot_id|>"]]
        return ids + self.header("assistant")


def tokenizer_pieces(samples):
    """Words of marked strings, whole strings of the rest: no merge crosses a mark."""
    for sample in samples:
        if sample["kind"] == "text":
            yield sample["text"]
            continue
        for _, content in sample["messages"]:
            yield from (p for p in content.split(corpus.MARK) if p)
    for number in range(101):
        yield from [str(number)] * 50


def batches(encoded, rng, tokens_per_batch):
    """Endless batches of similar lengths: shuffled, sorted inside windows, right-padded (causal: no mask needed)."""
    while True:
        order = list(range(len(encoded)))
        rng.shuffle(order)
        window = []
        for start in range(0, len(order), 2048):
            part = sorted(order[start : start + 2048], key=lambda i: len(encoded[i][0]))
            group = []
            for index in part:
                longest = len(encoded[index][0])
                if len(group) > 1 and longest * (len(group) + 1) > tokens_per_batch:
                    window.append(group)
                    group = []
                group.append(index)
            if len(group) > 1:  # every worker needs a row
                window.append(group)
            rng.shuffle(window)
            for group in window:
                yield collate([encoded[i] for i in group])
            window = []


def collate(pairs):
    width = max(len(ids) for ids, _ in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    labels = torch.full((len(pairs), width), IGNORE)
    for row, (a, b) in enumerate(pairs):
        ids[row, : len(a)] = torch.tensor(a)
        labels[row, : len(b)] = torch.tensor(b)
    return ids, labels


def loss_of(model, ids, labels):
    """Sum of the cross entropy on labelled tokens; the head runs only where a label is."""
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    target = labels[:, 1:]
    keep = target != IGNORE
    return F.cross_entropy(model.lm_head(hidden[keep]), target[keep], reduction="sum")


class Workers:
    """Data-parallel processes of one thread each.

    On a shared machine one process of two threads waits at every operator for the thread that was not scheduled
    (measured: 3.2 CPU seconds a step against 0.7 with one thread); two processes meet once a step.
    """

    def __init__(self, count, rank, store):
        self.count, self.rank, self.child = count, rank, None
        if count == 1:
            return
        if count != 2:
            raise SystemExit("--workers is 1 or 2")
        if rank == 0:
            store = os.path.join(tempfile.mkdtemp(prefix="train-"), "store")
            command = [sys.executable, *sys.argv, "--rank", "1", "--store", store]
            self.child = subprocess.Popen(command, start_new_session=True)
        torch.distributed.init_process_group(
            "gloo", init_method="file://" + store, rank=rank, world_size=count, timeout=timedelta(hours=1)
        )

    def share(self, ids, labels):
        """This worker's rows of a batch."""
        return ids[self.rank :: self.count], labels[self.rank :: self.count]

    def add_up(self, parameters, loss, steps):
        """Sums gradients and loss over the workers; the first one's `steps` holds for all."""
        if self.count == 1:
            return loss, steps
        extra = torch.tensor([loss, float(steps) if self.rank == 0 else 0.0])
        flat = torch.cat([p.grad.flatten() for p in parameters] + [extra])
        torch.distributed.all_reduce(flat)
        offset = 0
        for p in parameters:
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()
        return flat[-2].item(), round(flat[-1].item())


@torch.no_grad()
def generate(model, prompts, stop, limit=96):
    """Greedy continuation of prompts of one length, batched, with the KV cache."""
    ids = torch.tensor(prompts)
    cache, done, out = None, torch.zeros(len(prompts), dtype=torch.bool), [[] for _ in prompts]
    for _ in range(limit):
        result = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        ids = result.logits[:, -1].argmax(-1, keepdim=True)
        for row, token in enumerate(ids[:, 0].tolist()):
            if token in stop:
                done[row] = True
            if not done[row]:
                out[row].append(token)
        if done.all():
            break
    return out


def evaluate(model, coder, samples, limit=None):
    """Exact match of the greedy answer per group, and the misses."""
    model.eval()
    chosen = [s for s in samples if s["kind"] != "text"][:limit]
    by_length = {}
    for sample in chosen:
        by_length.setdefault(len(coder.prompt(sample)), []).append(sample)
    stop = {coder.special["<|eot_id|>"], coder.special["<|end_of_text|>"]}
    score, misses = {}, []
    for group in by_length.values():
        for start in range(0, len(group), 64):
            part = group[start : start + 64]
            for sample, tokens in zip(part, generate(model, [coder.prompt(s) for s in part], stop)):
                got, want = coder.bpe.decode(tokens), corpus.plain(sample["messages"][-1][1])
                label = f"{sample['kind']}/{sample['lang']}/{'list' if sample['list'] else 'bare'}"
                hits, total = score.get(label, (0, 0))
                score[label] = (hits + (got == want), total + 1)
                if got != want:
                    misses.append({"messages": sample["messages"], "got": got})
    model.train()
    return dict(sorted(score.items())), misses


@torch.no_grad()
def perplexity(model, encoded):
    """exp of the mean loss over all labelled tokens."""
    model.eval()
    total, count = 0.0, 0
    for pair in encoded:
        ids, labels = collate([pair])
        total, count = total + loss_of(model, ids, labels).item(), count + int((labels[:, 1:] != IGNORE).sum())
    model.train()
    return math.exp(total / count)


def rate(step, steps, args):
    """Warm-up, a constant plateau, then a linear fall to 2 % over the last `--decay` steps."""
    rise = min(1.0, (step + 1) / args.warmup)
    fall = min(1.0, (steps - step) / args.decay)
    return args.peak * min(rise, 0.02 + 0.98 * fall)


def rounded(model):
    """The checkpoint as it is stored: bf16, the embedding exact in f16 as well."""
    state = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        exact = name == "model.embed_tokens.weight"
        state[name] = gguf_export.exact_in_f16(tensor) if exact else tensor.detach().to(torch.bfloat16)
    return state


def save(model, bpe, out, args, report):
    """HF checkpoint (bf16), tokenizer and GGUF from one rounding: both hold the same ternary weights."""
    hf = os.path.join(out, "hf")
    os.makedirs(hf, exist_ok=True)
    state = rounded(model)
    tokenizer = home_tokenizer.wrap(bpe)
    tokenizer.save_pretrained(hf)
    config = model.config.to_dict()
    config.update(architectures=["BitNetForCausalLM"], dtype="bfloat16", quantization_config=bitnet_model.QUANTIZATION)
    with open(os.path.join(hf, "config.json"), "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)
        file.write("\n")
    with open(os.path.join(hf, "generation_config.json"), "w") as file:
        json.dump({"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}, file, indent=2)
        file.write("\n")
    from safetensors.torch import save_file

    save_file(state, os.path.join(hf, "model.safetensors"), metadata={"format": "pt"})
    extra = {
        "general.license": LICENCE,
        "general.author": "bitnet-harness",
        "general.description": "Small ternary test model: plain English, household commands in English and Chinese.",
        "bitnet_harness.recipe": "scripts/train_model.py",
        "bitnet_harness.recipe_seed": str(args.seed),
        "bitnet_harness.recipe_steps": str(args.steps),
        "bitnet_harness.recipe_hash": recipe_hash(),
        "bitnet_harness.versions": json.dumps(versions(), sort_keys=True),
        "bitnet_harness.checkpoint_sha256": file_hash(os.path.join(hf, "model.safetensors")),
    }
    parts = home_tokenizer.parts(bpe)
    path = os.path.join(out, NAME + ".gguf")
    gguf_export.export(path, state, model.config, parts, home_tokenizer.CHAT_TEMPLATE, NAME, extra)
    if args.f32:
        gguf_export.export(os.path.join(out, NAME + "-f32.gguf"), state, model.config, parts,
                           home_tokenizer.CHAT_TEMPLATE, NAME, extra, kind="f32")
    with open(os.path.join(out, "training.json"), "w") as file:
        json.dump(report, file, indent=1, ensure_ascii=False, sort_keys=True)
        file.write("\n")


def versions():
    import numpy
    import safetensors
    import tokenizers
    import transformers

    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__, "safetensors": safetensors.__version__, "numpy": numpy.__version__}


def file_hash(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recipe_hash():
    here = os.path.dirname(os.path.abspath(__file__))
    digest = hashlib.sha256()
    for name in ["corpus.py", "home_tokenizer.py", "bitnet_model.py", "gguf_export.py", "train_model.py"]:
        digest.update(file_hash(os.path.join(here, name)).encode())
    return digest.hexdigest()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--decay", type=int, default=800, help="last steps, over which the learning rate falls")
    parser.add_argument("--minutes", type=float,
                        help="shorten --steps so that the decay ends at about that time (the report says what came out)")
    parser.add_argument("--resume", help="start from this checkpoint; the schedule begins anew")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=70_000)
    parser.add_argument("--mix", help="weights of the sample shapes, see corpus.SHAPES")
    parser.add_argument("--tokenizer", help="tokenizer.json to use instead of training one (needed with --resume)")
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ffn", type=int, default=512)
    parser.add_argument("--peak", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--eval-every", type=int, default=600)
    parser.add_argument("--checkpoint", help="write the float32 training state here at every evaluation")
    parser.add_argument("--f32", action="store_true", help="also write the GGUF with dequantized f32 weights")
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    os.makedirs(args.out, exist_ok=True)
    workers = Workers(args.workers, args.rank, args.store)
    started = time.time()
    mix = {"weights": [int(w) for w in args.mix.split(",")]} if args.mix else {}
    train = corpus.samples(args.seed, "train", args.samples, **mix)
    held_out = corpus.samples(args.seed, "held_out", 2000, weights=HELD_OUT_MIX)
    if args.tokenizer:
        bpe = Tokenizer.from_file(args.tokenizer)
    else:
        bpe = home_tokenizer.train(tokenizer_pieces(train[:20_000]), args.vocab)
    coder = Coder(bpe, home_tokenizer.parts(bpe)[2])
    encoded = [coder.encode(s) for s in train]
    held_text = [coder.encode(s) for s in held_out if s["kind"] == "text"][:100]
    held_answers = [coder.encode(s) for s in held_out if s["kind"] == "command"][:300]
    lengths = [len(ids) for ids, _ in encoded]
    if workers.rank == 0:
        print(f"corpus {len(train)} samples, mean {sum(lengths) / len(lengths):.1f} tokens, longest {max(lengths)}, "
              f"vocabulary {bpe.get_vocab_size()}, {time.time() - started:.0f} s", flush=True)

    config = bitnet_model.configuration(bpe.get_vocab_size(), coder.special, layers=args.layers, ffn=args.ffn)
    model = bitnet_model.new_model(config, args.seed)
    parameters = list(model.parameters())
    decay = [p for p in parameters if p.dim() > 1]
    rest = [p for p in parameters if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
        lr=args.peak, betas=(0.9, 0.98), eps=1e-8, fused=True,
    )
    report = {"seed": args.seed, "versions": versions(), "arguments": vars(args), "recipe_hash": recipe_hash(),
              "parameters": sum(p.numel() for p in model.parameters()), "log": []}
    order = f"{args.seed}/order"
    if args.resume:
        state = torch.load(args.resume)
        model.load_state_dict(state["model"])
        if "optimizer" in state:
            optimizer.load_state_dict(state["optimizer"])
        report["resumed_after"] = state["step"]
        order += f"/{state['step']}"
    feed = batches(encoded, random.Random(order), args.batch_tokens)
    steps, seen, running, began, step = args.steps, 0, None, time.time(), 0
    model.train()
    while step < steps:
        if args.minutes and workers.rank == 0 and step >= 50 and steps > step + args.decay:
            elapsed = time.time() - began
            if elapsed + args.decay * elapsed / step > args.minutes * 60:
                steps = step + args.decay
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, args)
        ids, labels = next(feed)
        loss = loss_of(model, *workers.share(ids, labels)) / (labels[:, 1:] != IGNORE).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        value, steps = workers.add_up(parameters, loss.item(), steps)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        seen += ids.numel()
        running = value if running is None else 0.98 * running + 0.02 * value
        step += 1
        if workers.rank:
            continue
        if step % 25 == 0:
            elapsed = time.time() - began
            print(f"step {step}/{steps} loss {running:.4f} {seen / elapsed:.0f} tok/s {elapsed:.0f} s", flush=True)
        if step % args.eval_every == 0 and step < steps:
            score, _ = evaluate(model, coder, held_out, 200)
            entry = {"step": step, "seconds": round(time.time() - began), "loss": round(running, 4), "exact_match": score}
            report["log"].append(entry)
            print(json.dumps(entry), flush=True)
            if args.checkpoint:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                            "step": step + report.get("resumed_after", 0)}, args.checkpoint)
                save(model, bpe, args.out, args, report)
    if workers.rank:
        return
    args.steps = steps
    # What counts is the stored model: evaluate after rounding.
    model.load_state_dict({k: v.float() for k, v in rounded(model).items()}, strict=False)
    model.tie_weights()
    score, misses = evaluate(model, coder, held_out)
    report |= {
        "steps": steps, "tokens": seen, "seconds": round(time.time() - began), "final_loss": round(running, 4),
        "held_out": {
            "exact_match": {k: {"hits": h, "of": n, "ratio": round(h / n, 4)} for k, (h, n) in score.items()},
            "text_perplexity": round(perplexity(model, held_text), 4),
            "answer_perplexity": round(perplexity(model, held_answers), 4),
        },
        "misses": misses[:40],
    }
    save(model, bpe, args.out, args, report)
    print(json.dumps(report["held_out"], indent=1), flush=True)


if __name__ == "__main__":
    sys.exit(main())
