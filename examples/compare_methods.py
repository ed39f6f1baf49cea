"""What methods that read less say of the same text: python examples/compare_methods.py BOOK.txt"""

import sys
from pathlib import Path

import kvarn

METHODS = (kvarn.Full(), kvarn.TopK(budget="5%"), kvarn.Hash(budget="5%"))


def main(book: str) -> None:
    model = kvarn.load()
    text = Path(book).read_text(encoding="utf-8")
    for method in METHODS:
        context = model.context(attend=method)
        pieces = context.generate(text, max_tokens=20, sampler=kvarn.Sampler(temp=0))
        print(f"{method.name}: {''.join(pieces)!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
