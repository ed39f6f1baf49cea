"""Read a text once, then ask it: python examples/ask_a_book.py BOOK.txt [MODEL.gguf]

The pack BOOK.txt.pack stays. The next start opens it, and reads nothing again. `kvarn ask` does
the same.
"""

import sys
from pathlib import Path

import kvarn


def main(book: str, model_path: str | None = None) -> None:
    model = kvarn.load(model_path)
    pack = Path(f"{book}.pack")
    kvarn.build_pack(model, pack, Path(book).read_text(encoding="utf-8"))
    for line in sys.stdin:
        answer = kvarn.ask(model, pack, line.strip(), max_tokens=40)
        print(answer.text)
        for passage in answer.passages:
            print(f"  {passage.share:.0%}  {passage.place}: {passage.text!r}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/ask_a_book.py BOOK.txt [MODEL.gguf]")
    main(*sys.argv[1:])
