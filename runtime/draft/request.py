"""The draft that words ask for: options of the command line, names in C's JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...models.config import ModelConfig
from ...models.errors import ModelError
from ...system.errors import KvarnError
from ...system.text import one_line, shown
from ..gguf import GGUFFile, open_gguf
from .base import NGRAM, OPTIONS, BadDraftOption, Draft, DraftError, checked_option
from .model import DraftModel
from .ngram import Ngram
from .vocabulary import check_vocabulary

if TYPE_CHECKING:
    from ..model import Model

_OF_NGRAM, _OF_MODEL = ("max_tokens", "min_match"), ("max_tokens", "min_probability")


@dataclass(frozen=True)
class DraftRequest:
    """The draft that is asked for: `ngram`, or by the model in `file`, which is not loaded yet.

    options: those of `DraftModel`.
    """

    ngram: Ngram | None = None
    file: GGUFFile | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        words: Mapping[str, Any],
        spell: Callable[[str], str] = str,
        find: Callable[[Path], Path] = Path,
    ) -> DraftRequest | None:
        """What the words `draft` ("ngram", true for the same, a model's file; None or false: no
        draft) and those of `OPTIONS` ask for. find: the file that a name means.

        Raises `DraftError` for words without effect, values out of range, and files of no model
        that generates.
        """
        draft = words.get("draft")
        if draft == "":
            raise BadDraftOption(
                f"{spell('draft')} is empty, expected {NGRAM} or the file of a model"
            )
        draft = NGRAM if draft is True else draft or None
        used = () if draft is None else _OF_NGRAM if draft == NGRAM else _OF_MODEL
        options = {}
        for word, option in OPTIONS.items():
            if (value := words.get(word)) is None:
                continue
            if option not in used:
                needed = spell("draft") if draft is None else f"{spell('draft')} FILE"
                needed = f"{spell('draft')} {NGRAM}" if option == "min_match" else needed
                raise BadDraftOption(f"{spell(word)} {value:g} has no effect without {needed}")
            checked_option(option, value, f"{spell(word)} {value:.12g}")
            options[option] = value
        if draft is None:
            return None
        if draft == NGRAM:
            return cls(Ngram(**options))
        return cls(file=_open_file(draft, spell, find), options=tuple(options.items()))

    def check(self, path: Path) -> None:
        """Raises `DraftError` where it cannot guess for the model in this file."""
        if self.file is not None:
            check_vocabulary(self.file, open_gguf(path))

    def open(self, load: Callable[[Path], Model]) -> Draft:
        """The draft. load: loads the model of a file."""
        if self.file is None:
            return self.ngram or Ngram()
        return DraftModel(load(self.file.path), **dict(self.options))


def _open_file(name: str, spell: Callable[[str], str], find: Callable[[Path], Path]) -> GGUFFile:
    """The file of a model that drafts. Nothing but its metadata is read."""
    path, word = Path(name), spell("draft")
    if name.isdecimal() and not path.exists():
        most = spell("draft_max")
        raise BadDraftOption(f"{word} is {name}, expected {NGRAM} or a model's file: use {most} N")
    try:
        file = open_gguf(find(path))
    except KvarnError as error:
        raise DraftError(
            f"{word} is {shown(name)}, neither {NGRAM} nor a model: {error}"
        ) from error
    try:
        ModelConfig.from_metadata(file.metadata)
    except ModelError as error:
        raise DraftError(f"the draft {one_line(file.path.name)}: {error}") from error
    return file
