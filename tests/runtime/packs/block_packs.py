"""Packs that are read block by block, as tests of them begin."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.model import Model
from kvarn.runtime.packs.blocks import build_pack_in_blocks
from kvarn.runtime.packs.notes import texts_in
from kvarn.runtime.prefill import BlocksPrefill
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format.parts_text import parts_folder

BLOCKS = BlocksPrefill(2048)
N = 3 * 2048 + 700
CTX = 8192


def saved(path: Path) -> dict[str, object]:
    """All that a pack has saved, but its id and the number of its commits. Checkpoints by their
    digests: their slots depend on when commits were made."""
    assert not verify(path)
    manifest = json.loads((path / "pack.json").read_text())
    (commit, hidden), *_ = PackFolder(path).commits()
    others = {"pack.json", "commits", "lock", "checkpoints"}
    names = {file.name for file in path.iterdir()} - others
    kept = {name: (path / name).read_bytes() for name in sorted(names)}
    tail = replace(commit.tail, epoch=0)
    pins = tuple(replace(pin, tail=replace(pin.tail, epoch=0)) for pin in commit.pins)
    checkpoints = tuple(replace(one, slot=0) for one in commit.checkpoints)
    kept = {"tail" if name.startswith("tail-") else name: data for name, data in kept.items()}
    facts = {key: value for key, value in manifest.items() if key not in ("id", "check")}
    assert hidden is not None
    return {
        **kept,
        **facts,
        "commit": replace(commit, sequence=0, tail=tail, pins=pins, checkpoints=checkpoints),
        "hidden": hidden.tobytes(),
    }


def texts_in_parts(pack: Path):
    return texts_in(parts_folder(pack))


def stopped_in(
    model: Model,
    pack: Path,
    ids: list[int],
    name: str,
    after: int = 1024,
    prefill: BlocksPrefill = BLOCKS,
) -> None:
    """Read the pack up to `after` tokens of the block of that name."""

    def begin(block: str, context: kvarn.Context):
        def tell(done: int, total: int) -> None:
            if block == name and done >= after:
                raise InterruptedError

        return tell

    with pytest.raises(InterruptedError):
        build_pack_in_blocks(model, pack, ids, prefill, CTX, begin)
