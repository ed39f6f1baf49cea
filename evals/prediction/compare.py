"""Predicting the next tokens of texts under several methods at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...runtime.packs.pack import build_pack
from ...runtime.store import Disk, Ram
from ...system.errors import KvarnError
from .losses import MethodLosses, TextLosses, log_softmax

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.bench import Observer
    from ...runtime.context import Context
    from ...runtime.keep import Keep
    from ...runtime.model import Model
    from ...runtime.prefill import Prefill


@dataclass(frozen=True)
class Passage:
    """The beginning of a text: the ids that are read at once, and those that follow one by one."""

    name: str
    read: list[int]
    following: list[int]


def passages_of(
    model: Model, texts: Mapping[str, str], n_read: int, n_predicted: int
) -> list[Passage]:
    """The first `n_read` tokens of each text, and the `n_predicted` + 1 that follow: the first of
    them is decoded first, the last only predicted. Raises `KvarnError` for a text that is shorter.
    """
    tokenizer, needed = model.tokenizer, n_read + n_predicted + 1
    passages = []
    for name, text in texts.items():
        ids = tokenizer.encode(text, bos=tokenizer.add_bos)
        if len(ids) < needed:
            raise KvarnError(
                f"{name} has {len(ids):,} tokens, and --ctx {n_read:,} with --decode {n_predicted} "
                f"needs {needed:,}: use a longer text or smaller numbers"
            )
        passages.append(Passage(name, ids[:n_read], ids[n_read:needed]))
    return passages


def compare_methods(
    model: Model,
    passages: Sequence[Passage],
    methods: Mapping[str, Attend],
    folder: Path,
    kinds: tuple[str, str],
    prefill: Prefill | None,
    observer: Observer,
    keeps: Mapping[str, Keep] | None = None,
) -> list[MethodLosses]:
    """What each of the methods loses against the first one, full attention; then each of `keeps`.

    Each passage is read once into a pack in `folder`, or is there already. Then one context for
    each method opens it. Each that evicts reads the passage itself, in memory, with full attention
    to what it keeps; a budget in percent is a share of the passage. All decode the same tokens.
    kinds: stored types of K and V.
    """
    keeps = keeps or {}
    results = [MethodLosses(name) for name in (*methods, *keeps)]
    totals = [_Totals() for _ in results]
    for passage in passages:
        pack = Disk(folder / pack_name(passage, prefill, model), *kinds)
        build_pack(
            model, pack, passage.read, len(passage.read), prefill, observer.progress(passage.name)
        )
        with model.silenced(), ExitStack() as stack:
            contexts = [
                stack.enter_context(_open_context(model, Path(pack.path), passage, method))
                for method in methods.values()
            ]
            for name, keep in keeps.items():
                context = model.context(
                    len(passage.read), keep=keep, store=Ram(*kinds), prefill=prefill, kv_on="host"
                )
                contexts.append(stack.enter_context(context))
                context.prefill(passage.read, observer.progress(f"{passage.name}, {name}"))
            losses = _predict(contexts, passage)
            for result, total, context, text in zip(results, totals, contexts, losses, strict=True):
                result.texts.append(text)
                total.add(context)
        observer.say(f"{passage.name}: {len(passage.following) - 1} tokens predicted")
    for result, total in zip(results, totals, strict=True):
        result.read, result.covered, result.error = total.means()
    return results


def _open_context(model: Model, pack: Path, passage: Passage, method: Attend) -> Context:
    """A context that goes on after a passage's pack."""
    room = len(passage.read) + len(passage.following)
    context = model.context(room, method, store=Disk(pack, read_only=True), kv_on="host")
    context.index()
    return context


def _predict(contexts: Sequence[Context], passage: Passage) -> list[TextLosses]:
    """Decode what follows a passage in all contexts, in step."""
    losses = [TextLosses() for _ in contexts]
    for token, following in zip(passage.following, passage.following[1:]):
        rows = [log_softmax(context.decode(token)) for context in contexts]
        for text, row in zip(losses, rows, strict=True):
            text.add(rows[0], row, following)
    return losses


class _Totals:
    """Sums over a method's contexts of what their layers have counted; where tokens are evicted, of
    those that are kept at the end."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)

    def add(self, context: Context) -> None:
        if (kept := context.stats.kept) is not None:
            self._sums[:2] += kept.n_kept, len(context.tokens)
            return
        for layer in context.stats.layers:
            self._sums += (
                layer.attended_tokens, layer.stored_tokens,
                layer.covered_mass, layer.output_error, layer.probes,
            )  # fmt: skip

    def means(self) -> tuple[float | None, float | None, float | None]:
        """Share of the tokens read, of the softmax covered, and the output error."""
        attended, stored, covered, error, probes = map(float, self._sums)
        if not probes:
            return attended / stored if stored else None, None, None
        return attended / stored, covered / probes, error / probes


def pack_name(passage: Passage, prefill: Prefill | None, model: Model) -> str:
    """A name of its own for each passage, model and way of reading."""
    facts = repr((passage.read, prefill, model.info.fingerprint))
    return blake2b(facts.encode(), digest_size=12).hexdigest()
