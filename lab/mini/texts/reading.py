"""What the default model's encoders learn from: `python -m lab.mini.texts.reading TEXTS OUT.txt`.

`kvarn learn` has to see queries that look far back, and what they should find. Of three kinds:

notes   novels with notes, questions and passages that come back (`notes`): nothing of `evals/tasks`
tasks   contexts of the recall tasks, each with its questions and replies behind it, and novels
prose   novels alone

`kvarn eval` measures encoders of the second kind by tasks that they learned from, with other seeds,
those of the others by tasks that are new to them. So the paper tells HashAttention* from
HashAttention.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from kvarn.evals.tasks import TASKS, Filler, Prose
from kvarn.system.files import check_target, new_file

from .data import read_books
from .notes import pieces
from .rows import MIXED

CONTEXT_CHARS = (3_000, 12_000, 25_000)
"""Lengths of a context; the longest fills a learned context of 8,192 tokens nearly alone."""
QUESTIONS = (10, 40)
"""About a context; many, for each is a query that looks back."""
PLAIN = 0.25
"""Share of contexts that are running text."""
SEED = 2_000_003
"""Apart from the seeds of training and of its measurements."""


def contexts(filler: Filler, seed: int) -> Iterator[str]:
    """An endless series of contexts with their questions."""
    rng = random.Random(seed)
    while True:
        n_chars = rng.choice(CONTEXT_CHARS)
        if rng.random() < PLAIN:
            yield _running_text(rng, filler, n_chars)
            continue
        name = rng.choices(list(MIXED), list(MIXED.values()))[0]
        sample = TASKS[name](rng, n_chars, rng.choice(QUESTIONS), filler)
        asked = "".join(f"\n{q.text}{q.reply}" for q in sample.questions)
        yield f"{sample.context}{asked}\n"


def _running_text(rng: random.Random, filler: Filler, n_chars: int) -> str:
    text = ""
    for sentence in filler.sentences(rng):
        text += sentence
        if len(text) >= n_chars:
            break
    return text.lstrip() + "\n"


def prose(filler: Filler, seed: int) -> Iterator[str]:
    """Running text without end."""
    return filler.sentences(random.Random(seed))


KINDS = {"notes": pieces, "tasks": contexts, "prose": prose}


def main() -> None:
    """Entry point of the module."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("text", type=Path, help="folder of *.txt")
    p.add_argument("out", type=Path, help="text file to write")
    p.add_argument("--chars", type=float, default=2e6)
    p.add_argument("--max-words-per-sentence", type=float, default=24.0)
    p.add_argument("--kind", choices=KINDS, required=True)
    p.add_argument("--without", metavar="NAME", nargs="*", default=[], help="books to leave out")
    p.add_argument("--seed", type=int, default=SEED)
    args = p.parse_args()
    check_target(args.out)
    books = read_books(args.text, args.max_words_per_sentence)
    texts = [book.train for book in books if book.name not in args.without]
    written = 0
    with new_file(args.out) as part, part.open("r+", encoding="utf-8") as file:
        for text in KINDS[args.kind](Prose(texts), args.seed):
            written += file.write(text)
            if written >= args.chars:
                break
    print(f"{args.out}: {written:,} characters")


if __name__ == "__main__":
    main()
