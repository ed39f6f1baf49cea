"""Which packs a question fits: how much likelier it is after each than without.

Reading a question after a pack takes a pass of the model. Of more than `CANDIDATES` packs, those
are read after whose texts have the question's words, and pairs of neighbours (BM25, k1 = 1.2 and
b = 0.75; Robertson and Zaragoza, 2009). Nothing is kept for that: to count a few words in the texts
of 200 packs of 16K tokens takes half a second. A question none of whose words stands in any text is
read after all packs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...ops.arrays import F64
from ...system.errors import KvarnError
from ..context.planning.request import ContextRequest
from ..perplexity import losses_of
from ..sampling import Sampler
from ..store import Disk
from ..store.disk.info import pack_ids
from . import MAX_TOKENS
from .asking import Answer, Asker
from .notes import finished_packs

if TYPE_CHECKING:
    from ..context import Context, Progress
    from ..lens.weights import Open
    from ..model import Model
    from ..tokenizer import Tokenizer

CANDIDATES = 16
"""Packs after which a question is read."""
_K1, _B = 1.2, 0.75
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Thai, Lao, kana, Han, Hangul: runs of letters that are more than a word."""


@dataclass(frozen=True)
class Fit:
    """How well a question fits a pack: ln p of its tokens after the pack less that without it, the
    mean over the tokens."""

    pack: str
    gain: float


@dataclass(frozen=True)
class PackAnswer:
    """What one of many packs answered."""

    pack: str
    gain: float
    answer: Answer


def rank_packs(
    model: Model,
    packs: Sequence[ContextRequest],
    question: str,
    open: Open | None = None,
    progress: Progress | None = None,
) -> list[Fit]:
    """The packs that the question fits best, at most `CANDIDATES`, the best first; all, where none
    of its words is in any of them.

    packs: contexts whose stores are packs of the model. open: opens them (`Model.open`). progress:
    called with the packs after which the question was read, and their number.
    """
    paths = [Path(str(pack.store.path)) for pack in packs if isinstance(pack.store, Disk)]
    chosen = list(range(len(packs)))
    if len(packs) > CANDIDATES:
        chosen = candidates(word_scores(question, paths, model.tokenizer))
    fits = fits_of(model, [packs[i] for i in chosen], question, open, progress)
    return sorted(fits, key=lambda fit: -fit.gain)


def candidates(scores: F64) -> list[int]:
    """Those of packs with these `word_scores` after which the question is read."""
    order = np.argsort(-scores, kind="stable")[: CANDIDATES if scores.any() else None]
    chosen: list[int] = order.tolist()
    return chosen


def fits_of(
    model: Model,
    packs: Sequence[ContextRequest],
    question: str,
    open: Open | None = None,
    progress: Progress | None = None,
) -> list[Fit]:
    """How well the question fits each pack, in their order. The others: as in `rank_packs`."""
    open, tokenizer = open or model.open, model.tokenizer
    ids = tokenizer.encode(f"\n{question}")
    if len(ids) < 2:
        raise KvarnError("the question is empty: expected at least a word")
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    with model.context(len(begin) + len(ids) + 1) as context:
        if begin:
            context.prefill(begin)
        without = _log_likelihood(context, ids)
    fits = []
    for done, pack in enumerate(packs, 1):
        with open(pack) as context:
            gain = _log_likelihood(context, ids) - without
        fits.append(Fit(str(pack.store.path), gain))  # type: ignore[attr-defined]
        if progress is not None:
            progress(done, len(packs))
    return fits


def ask_packs(
    model: Model,
    packs: str | Path | Sequence[str | Path],
    question: str,
    best: int = 1,
    max_tokens: int | None = MAX_TOKENS,
    sampler: Sampler | None = None,
    system: str | None = None,
) -> list[PackAnswer]:
    """Ask those of many packs that the question fits best; each answers from its own text.

    packs: their folders, or the folder that they are in, whose finished packs are asked. best: how
    many answer, the best first. The others: as in `ask`. Raises `KvarnError` for a folder without
    such packs and for `best` below 1, `PackError` for a pack of another model, `ConversationError`
    where no room is left for an answer.
    """
    if best < 1:
        raise KvarnError(f"best is {best}: at least one pack has to answer")
    folders = finished_packs(Path(packs), model.tell) if isinstance(packs, str | Path) else packs
    requests = {
        str(path): ContextRequest(store=Disk(path, read_only=True)) for path in map(Path, folders)
    }
    asker = Asker(model.open, sampler or Sampler(temp=0), max_tokens, system=system)
    fits = rank_packs(model, list(requests.values()), question)[:best]
    return [
        PackAnswer(fit.pack, fit.gain, asker.answer(requests[fit.pack], question)) for fit in fits
    ]


def word_scores(question: str, packs: Sequence[Path], tokenizer: Tokenizer) -> F64:
    """BM25 of the texts of packs, float64 (packs,): 0 where no word of the question stands.

    Words are compared without regard to case. In scripts without spaces, two neighbouring letters
    count as a word. Raises `PackError` for a pack that cannot be opened.
    """
    return scores_of(*word_counts(question, packs, tokenizer))


def word_counts(question: str, packs: Sequence[Path], tokenizer: Tokenizer) -> tuple[F64, F64]:
    """How often each word of the question stands in the texts of packs, float64 (packs, words), and
    the characters of the texts, float64 (packs,)."""
    patterns = [_pattern(word) for word in dict.fromkeys(words_of(question))]
    counts, lengths = np.zeros((len(packs), len(patterns))), np.zeros(len(packs))
    text_of = _Texts(tokenizer)
    for row, path in enumerate(packs):
        text = text_of(path)
        lengths[row] = len(text)
        counts[row] = [len(pattern.findall(text)) for pattern in patterns]
    return counts, lengths


def scores_of(counts: F64, lengths: F64) -> F64:
    """`word_scores`, of the counts of all packs."""
    n, n_with = len(counts), (counts > 0).sum(axis=0)
    weights = np.log1p((n - n_with + 0.5) / (n_with + 0.5))
    lengths = lengths / max(lengths.mean(), 1)
    shares = counts * (_K1 + 1) / (counts + _K1 * (1 - _B + _B * lengths[:, None]))
    scores: F64 = shares @ weights
    return scores


def words_of(question: str) -> list[str]:
    """What is looked for, in lower case: words, and pairs of neighbours, which tell texts apart
    that have all of the words."""
    words, before = list[str](), ""
    for word in _WORD.findall(question.casefold()):
        rest = _UNSPACED.sub(" ", word).split()
        if rest == [word]:
            words += [f"{before} {word}"] if before else []
        before = word if rest == [word] else ""
        words += rest
        for run in _UNSPACED.findall(word):
            words += [run[i : i + 2] for i in range(max(len(run) - 1, 1))]
    return words


def _pattern(word: str) -> re.Pattern[str]:
    """The word between borders. The letters come first: they are what `re` looks for fast."""
    found = re.escape(word)
    return re.compile(found if _UNSPACED.search(word) else rf"{found}\b(?<=\b{found})")


class _Texts:
    """The texts of packs, in lower case."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, bytes] = {}

    def __call__(self, pack: Path) -> str:
        ids = pack_ids(pack).tolist()
        for token in set(ids) - self._pieces.keys():
            self._pieces[token] = self._tokenizer.piece(token)
        data = b"".join(map(self._pieces.__getitem__, ids))
        return data.decode("utf-8", "replace").casefold()


def _log_likelihood(context: Context, ids: Sequence[int]) -> float:
    """The mean of ln p of ids[1:]; the context has read all ids after that."""
    loss = float(losses_of(context.read_all_logits(ids), ids[1:]).mean())
    if not math.isfinite(loss):
        raise KvarnError(f"the model's logits after {len(context.tokens):,} tokens are not finite")
    return -loss
