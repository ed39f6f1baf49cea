"""Cuts a text into words by one or more regular expressions; BPE merges only within a word.

Each step cuts every piece from the step before into the pattern's matches and the gaps between
them. Pieces are matched separately, so a look-ahead sees nothing beyond its piece. A pattern is
matched against one view of the text (`unicode_table`): "class" (every character folded to its
class), "han" (the same, with classes for Han) or "text" (only white space folded). All matching is
ASCII matching: `\\s` is [ \\t\\n\\v\\f\\r].
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

from .unicode_table import Fold, N, fold_han, fold_space, fold_to_class

_VIEWS = {"class": Fold(fold_to_class), "han": Fold(fold_han), "text": Fold(fold_space)}


@dataclass(frozen=True)
class Step:
    """One cut: the pattern, without capturing groups, and the view it reads."""

    pattern: str
    view: str = "class"

    def cut(self, pieces: list[str]) -> list[str]:
        """The matches in the pieces and the gaps between them, in order."""
        find, split = _matchers(self.pattern)
        words: list[str] = []
        for piece in pieces:
            matches = find(piece)
            if not matches:
                words.append(piece)
            elif sum(map(len, matches)) == len(piece):
                words += matches
            else:
                words += filter(None, split(piece))
        return words


@dataclass(frozen=True)
class DigitGroups:
    """Cuts runs of digits into groups of three from the right: 1234567 → 1 234 567.

    As in llama.cpp, the text before a run stays with its first group; the next step cuts it off.
    """

    view: str = "class"

    def cut(self, pieces: list[str]) -> list[str]:
        """The groups and what lies between them, in order."""
        return [word for piece in pieces for word in self._cut_one(piece) if word]

    def _cut_one(self, piece: str) -> list[str]:
        words = []
        start = 0
        for run in re.finditer(f"[{N}]+", piece):
            first, stop = run.span()
            for cut in range(first + ((stop - first) % 3 or 3), stop + 1, 3):
                words.append(piece[start:cut])
                start = cut
        words.append(piece[start:])
        return words


@cache
def _matchers(pattern: str) -> tuple[Callable[[str], list[str]], Callable[[str], list[str]]]:
    """Functions that find a pattern's matches, and the matches with the gaps between (slower)."""
    isolated = re.compile(f"({pattern})", re.ASCII)
    return re.compile(pattern, re.ASCII).findall, isolated.split


def split_words(text: str, steps: Iterable[Step | DigitGroups]) -> list[str]:
    """The words of `text`; joined, they are `text` again."""
    words = [text] if text else []
    ascii_only = text.isascii()
    views: dict[str, str] = {}
    for step in steps:
        if not ascii_only:
            if step.view not in views:
                views[step.view] = text.translate(_VIEWS[step.view])
            words = _cut_alike(views[step.view], words)
        words = step.cut(words)
    return words if ascii_only else _cut_alike(text, words)


def _cut_alike(text: str, words: list[str]) -> list[str]:
    """`text` cut at the same places as `words`."""
    if len(words) == 1:
        return [text]
    ends = accumulate(map(len, words), initial=0)
    return [text[start:end] for start, end in pairwise(ends)]
