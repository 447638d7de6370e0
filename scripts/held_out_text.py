"""Prints the held-out plain texts of the training corpus, one a line: the text that perplexity is measured on.

    python scripts/held_out_text.py --samples 3000 > target/held-out.txt

Sentences of this text are in no training sample (scripts/corpus.py splits by sentence). The standard library is enough.
"""

import argparse

import corpus

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--samples", type=int, default=3000, help="samples to draw; one in ten is plain text")
args = parser.parse_args()
for sample in corpus.samples(args.seed, "held_out", args.samples):
    if sample["kind"] == "text":
        print(sample["text"])
