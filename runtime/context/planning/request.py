"""What a user asks of a context, in the same terms for each front end.

Command lines and C give words with values (`ContextRequest.of`), Python gives objects
(`Model.context`). `plan` decides the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....ops.attention.layout import KV_TYPES
from ....system.values import WrongValue, count, path_text
from ...attend import Attend, Full
from ...axes import ATTEND_AXIS, KEEP_AXIS, PREFILL_AXIS, RequestError, Spell, make_method
from ...home import pack_path, saved_path
from ...keep import Keep, KeepAll
from ...loading.device_names import KV_ON
from ...methods import Kind, Option
from ...prefill import Exact, Prefill
from ...shards import Sharded, Shards
from ...store import Disk, Ram, Store, StoreError


@dataclass(frozen=True)
class ContextRequest:
    """What a user asks of a context; None: nothing was said.

    n_ctx: room for so many tokens; 0: for the model's training length, whether it fits or not.
    kv_on: where K and V are if the model is on a GPU, see `load`.
    """

    n_ctx: int | None = None
    attend: Attend = Full()  # noqa: RUF009 - frozen, without fields
    keep: Keep = KeepAll()  # noqa: RUF009
    store: Store = Ram()  # noqa: RUF009 - frozen
    prefill: Prefill | None = None
    kv_on: str | None = None

    @classmethod
    def of(cls, words: Mapping[str, Any], spell: Spell = str) -> ContextRequest:
        """The request that these words make; `context_words` has read their values, and other words
        are ignored. parent: the pack that a new one in `store` begins with.

        Raises `RequestError` for words that have no effect, exclude each other, or that methods
        refuse, and `StoreError` for places that cannot be.
        """
        prefill = PREFILL_AXIS.chosen(words, spell)
        return cls(
            words.get("ctx"),
            _attend(words, spell),
            KEEP_AXIS.chosen(words, spell),
            _store(words, spell),
            None if words.get("prefill") is None else prefill,
            words.get("kv_on"),
        )


def context_words() -> dict[str, Kind]:
    """Each word about a context → what reads its value."""
    return {
        **ATTEND_AXIS.kinds(),
        **KEEP_AXIS.kinds(),
        **PREFILL_AXIS.kinds(),
        "ctx": count,
        "kv_type": kv_types,
        "store": path_text,
        "pack": path_text,
        "io": Disk.options()["io"].read,
        "kv_on": Option("", choices=KV_ON).read,
    }


def kv_types(value: object) -> tuple[str, str]:
    """Types of K and of V: "q8_0" → ("q8_0", "q8_0"), "q8_0/q4_0" → ("q8_0", "q4_0")."""
    k, _, v = value.partition("/") if isinstance(value, str) else ("", "", "")
    pair = k, v or k
    if not set(pair) <= set(KV_TYPES):
        raise WrongValue(f"one of {', '.join(KV_TYPES)}, or K/V apart as in q8_0/q4_0", value)
    return pair


def _attend(words: Mapping[str, Any], spell: Spell) -> Attend:
    """What tokens read, some of which shards may hold."""
    attend, shards = ATTEND_AXIS.chosen(words, spell), words.get("shards")
    if shards is None:
        for word in ("token", "token_file", "shards_choice"):
            if words.get(word) is not None:
                raise RequestError(f"{spell(word)} has no effect without {spell('shards')}")
        return attend
    if words.get("store") not in (None, Ram.name):
        raise RequestError(
            f"{spell('shards')} and {spell('store')} exclude each other: their pack is only read"
        )
    if words.get("pack") is None:
        raise RequestError(
            f"{spell('shards')} needs {spell('pack')}: the pack whose segments they hold"
        )
    if (keep := words.get("keep")) not in (None, KeepAll.name):
        raise RequestError(
            f"{spell('shards')} and {spell('keep')} {keep} exclude each other: shards keep all"
        )
    if (prefill := words.get("prefill")) not in (None, Exact.name):
        raise RequestError(
            f"{spell('shards')} and {spell('prefill')} {prefill} exclude each other: with shards, "
            "prompts are read exactly"
        )
    token = words.get("token") or words.get("token_file") or ""
    choice = words.get("shards_choice") or "all"
    of = Shards(tuple(shards.split(",")), token)
    return make_method(Sharded, {"shards": of, "method": attend, "choice": choice})


def _store(words: Mapping[str, Any], spell: Spell) -> Store:
    """Where K and V are: in memory, in a folder, or after a pack."""
    pack, named, io = (words.get(word) for word in ("pack", "store", "io"))
    named = None if named == Ram.name else named
    if pack is not None and named is not None:
        raise RequestError(
            f"{spell('pack')} and {spell('store')} are two places for one KV cache: give one of "
            "them"
        )
    k, v = words.get("kv_type") or (None, None)
    if pack is not None:
        if saved_path(pack) != pack_path(pack):
            raise StoreError(f"{pack} is a session: `kvarn chat --session {pack}` goes on with it")
        return Disk(pack_path(pack), k, v, read_only=True, io=io or Disk.io)
    if named is None:
        if io is not None:
            raise RequestError(
                f"{spell('io')} has no effect without {spell('pack')} or {spell('store')}"
            )
        return Ram(k or Ram.k, v or Ram.v)
    folder = Path(named).expanduser()
    if folder.is_file():
        raise StoreError(
            f"{spell('store')} {folder} is a file: expected a folder, or a name for a new one"
        )
    return Disk(folder, k, v, io=io or Disk.io, parent=words.get("parent"))
