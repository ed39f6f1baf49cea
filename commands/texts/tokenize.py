"""`kvarn tokenize`: the token ids of a text, as the model's own tokenizer makes them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.documents import joined
from ...runtime.loading.default_model import usual_model_path
from ...runtime.tokenizer import load_tokenizer
from ...system.errors import KvarnError
from ...system.reading import read_stdin
from ...system.terminal import say, show
from ..options.files import add_prompt_files_option, documents_from
from ..options.model import model_file
from ..options.model_options import add_file_flag
from ..options.values import utf8

if TYPE_CHECKING:
    from ...runtime.tokenizer import Tokenizer


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the tokens of TEXT, of files or of standard input, one per line: id, tab, piece "
        "(what is not printable, and the backslash, escaped as in Python)."
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "text", metavar="TEXT", nargs="*", default=[], type=utf8, help="words, joined by spaces"
    )
    add_prompt_files_option(
        source,
        "read the text from FILE, also a PDF, Word, EPUB or HTML file; may be given again, as in "
        "`run`",
    )
    add_file_flag(parser, "a GGUF file (default: as for `run`)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--ids", action="store_true", help="print only the ids, on one line")
    form.add_argument("--json", action="store_true", help="print the ids as a JSON list")
    form.add_argument("--count", action="store_true", help="print only the number of tokens")
    parser.add_argument(
        "--special",
        action="store_true",
        help="read control tokens that the text spells out as such (default: as text)",
    )
    parser.add_argument(
        "--bos", action="store_true", help="add the BOS and EOS tokens that the model asks for"
    )


def run(options: argparse.Namespace) -> int:
    if (first := "".join(options.text[:1])).endswith(".gguf") and Path(first).is_file():
        raise KvarnError(f"{first} is a model, expected a text: give the model with -m")
    text = " ".join(options.text) if options.text else _read(options)
    path = usual_model_path(say) if options.model is None else model_file(options.model)
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(text, bos=options.bos, special=options.special)
    show(_render(options, tokenizer, ids))
    return 0


def _read(options: argparse.Namespace) -> str | bytes:
    """The text of files, or the bytes of standard input, not always UTF-8."""
    return joined(documents_from(options)) if options.files else read_stdin()


def _render(options: argparse.Namespace, tokenizer: Tokenizer, ids: list[int]) -> str:
    if options.count:
        return str(len(ids))
    if options.json:
        return json.dumps(ids)
    if options.ids:
        return " ".join(map(str, ids))
    return "\n".join(f"{token}\t{visible(tokenizer.piece(token))}" for token in ids)


def visible(piece: bytes) -> str:
    """A piece on one line that says exactly which bytes it is: "\\n", "\\xe4", "\\\\", "é"."""
    shown = []
    for character in piece.decode("utf-8", "surrogateescape"):
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:  # a byte of an unfinished character
            shown.append(f"\\x{code - 0xDC00:02x}")
        elif character == "\\" or not character.isprintable():
            shown.append(character.encode("unicode_escape").decode("ascii"))
        else:
            shown.append(character)
    return "".join(shown)
