"""Options of drafts: `--draft`, by repetitions or by a smaller model, and what belongs to it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...models.config import ModelConfig
from ...models.errors import ModelError
from ...runtime.draft import DraftError, DraftModel, Ngram, check_options
from ...runtime.draft.vocabulary import check_vocabulary
from ...runtime.gguf import GGUFFile, open_gguf
from ...system.errors import KvarnError
from ...system.text import one_line, shown
from .model import model_file
from .values import number, positive, utf8

_NGRAM = "ngram"
# Option of drafts, its flag, its kind and letter, what it does.
_OPTIONS: tuple[tuple[str, str, Any, str, str], ...] = (
    (
        "max_tokens",
        "--draft-max",
        positive,
        "N",
        f"at most N tokens in a draft (default {Ngram.max_tokens}; of a model "
        f"{DraftModel.max_tokens})",
    ),
    (
        "min_match",
        "--draft-min-match",
        positive,
        "N",
        f"ngram: the fewest tokens that count as a repetition (default {Ngram.min_match})",
    ),
    (
        "min_probability",
        "--draft-p-min",
        number,
        "P",
        "a model's draft ends where it gives no token a probability of P (default "
        f"{DraftModel.min_probability})",
    ),
)
_OF_NGRAM, _OF_MODEL = ("max_tokens", "min_match"), ("max_tokens", "min_probability")


@dataclass(frozen=True)
class DraftRequest:
    """The draft that options ask for: `ngram`, or by the model in `file`, which is not loaded yet.

    options: those of `DraftModel`.
    """

    ngram: Ngram | None = None
    file: GGUFFile | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def check(self, path: Path) -> None:
        """Raises `KvarnError` where it cannot guess for the model in this file."""
        if self.file is not None:
            check_vocabulary(self.file, open_gguf(path))


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--draft` and what belongs to it to `parser`."""
    group = parser.add_argument_group(
        "drafting", "guess tokens and verify them in one pass: the same text, sooner"
    )
    group.add_argument(
        "--draft",
        "-md",
        "--model-draft",
        "--draft-model",
        metavar="ngram|FILE",
        type=utf8,
        help="ngram: guess what followed the last tokens earlier in the context; FILE: let a "
        "smaller model of the same vocabulary guess (default: no drafts)",
    )
    for name, flag, kind, letter, help in _OPTIONS:
        group.add_argument(flag, dest=f"draft_{name}", metavar=letter, type=kind, help=help)


def draft_from(options: argparse.Namespace) -> DraftRequest | None:
    """The draft that parsed options ask for, of a model whose file was opened. `KvarnError` for
    options without effect, values out of range, and files of no model that generates."""
    draft = options.draft
    used = () if draft is None else _OF_NGRAM if draft == _NGRAM else _OF_MODEL
    given = {}
    for name, flag, *_ in _OPTIONS:
        if (value := getattr(options, f"draft_{name}")) is None:
            continue
        if name not in used:
            needed = "--draft" if draft is None else "--draft FILE"
            needed = "--draft ngram" if name == "min_match" else needed
            raise KvarnError(f"{flag} {value:g} has no effect without {needed}")
        given[name] = value
    if draft is None:
        return None
    if draft == _NGRAM:
        return DraftRequest(Ngram(**given))
    check_options(**{name: given.get(name, getattr(DraftModel, name)) for name in _OF_MODEL})
    return DraftRequest(file=_opened(draft), options=tuple(given.items()))


def _opened(name: str) -> GGUFFile:
    """The file of a model that drafts. Nothing but its metadata is read."""
    path = Path(name)
    if name.isdecimal() and not path.exists():
        raise KvarnError(f"--draft is {name}, expected ngram or a model's file: use --draft-max N")
    try:
        file = open_gguf(model_file(path))
    except KvarnError as error:
        raise DraftError(f"--draft is {shown(name)}, neither ngram nor a model: {error}") from error
    try:
        ModelConfig.from_metadata(file.metadata)
    except ModelError as error:
        raise DraftError(f"the draft {one_line(file.path.name)}: {error}") from error
    return file
