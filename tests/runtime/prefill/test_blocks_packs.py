"""Packs whose prompts were read in blocks: the same in any sessions, bound to their blocks."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import TopK
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import build_pack, pack_info
from kvarn.runtime.prefill import BlocksPrefill, Exact, SparsePrefill
from kvarn.runtime.store import Disk, PackError
from kvarn.runtime.store.disk.archive.exporting import export_pack
from kvarn.runtime.store.disk.archive.importing import import_pack
from kvarn.runtime.store.disk.checking.verify import verify

from ...programs import killed
from ..reading import ids_of
from .pack_files import bytes_of, write_checked
from .sparse_reading import N, read_prompt

BLOCKS = BlocksPrefill(1024)
UNTIL = N // 1024 * 1024


@pytest.fixture(scope="module")
def pack(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of 2,700 tokens in two blocks and a rest."""
    path = tmp_path_factory.mktemp("packs") / "pack"
    build_pack(model, path, ids_of(model, N), N + 100, prefill=BLOCKS)
    return path


@pytest.mark.parametrize("attend", [None, TopK(budget=40, index="flat")])
def test_generated_tokens_are_read_by_their_own_method(pack: Path, model: Model, attend) -> None:
    """Over the same K and V, which they read whole."""
    context, _ = read_prompt(model, BLOCKS, attend=attend)
    with model.context(N + 40, attend, store=Disk(pack, read_only=True), prefill=Exact()) as after:
        for token in ids_of(model, 8):
            np.testing.assert_array_equal(context.decode(token), after.decode(token))


@pytest.mark.parametrize("rest", ["exact", "sparse", "block"])
def test_sessions_give_thebytes_of_one(model: Model, tmp_path: Path, rest: str) -> None:
    """The pack remembers where its blocks end."""
    ids, prefill = ids_of(model, N), replace(BLOCKS, rest=rest)
    build_pack(model, tmp_path / "whole", ids, N + 100, prefill=prefill)
    path = tmp_path / "parts"

    def stop(done: int, total: int) -> None:
        if done >= 512:
            raise InterruptedError

    for asked in (prefill, None, prefill, None):
        with pytest.raises(InterruptedError):
            build_pack(model, path, ids, N + 100, asked, stop)
        assert pack_info(path).n_tokens < N
    build_pack(model, path, ids, N + 100)
    assert bytes_of(path) == bytes_of(tmp_path / "whole")
    assert pack_info(path).prefill == pack_info(tmp_path / "whole").prefill


KILLED = """
import os, signal, sys
from pathlib import Path
import kvarn

def kill(done, total):
    if done == 1536:
        os.kill(os.getpid(), signal.SIGKILL)

path, pack, ids = sys.argv[1:]
ids, model = [int(i) for i in ids.split(",")], kvarn.load(path, threads=1)
store = kvarn.Disk(Path(pack))
context = model.context(2800, store=store, prefill=kvarn.BlocksPrefill(1024))
context.prefill(ids, kill)
"""


def test_a_killed_process_is_gone_on_from(pack: Path, model: Model, tmp_path: Path) -> None:
    """In a folder without a goal."""
    ids, path = ids_of(model, N), tmp_path / "pack"
    killed(KILLED, model.path, path, ",".join(map(str, ids)))
    assert pack_info(path).n_tokens == 1024
    assert pack_info(path).prefill == "blocks:1024 (up to token 2,048)"
    with model.context(N + 100, store=Disk(path)) as context:
        assert context.plan.prefill == BLOCKS
        context.prefill(ids[1024:])
    assert bytes_of(path) == bytes_of(pack)


def test_a_pack_says_how_it_was_read_and_refuses_another(
    pack: Path, model: Model, tmp_path: Path
) -> None:
    said = "blocks:1024 (up to token 2,048)"
    export_pack(pack, tmp_path / "file")
    import_pack(tmp_path / "file", tmp_path / "copy")
    for path in (pack, tmp_path / "copy"):
        assert pack_info(path).prefill == said
        assert not list(verify(path))
    for other, asked in (
        (Exact(), "exact"),
        (BlocksPrefill(512), "blocks:512"),
        (replace(BLOCKS, until=1024), r"blocks:1024 \(up to token 1,024\)"),
        (replace(BLOCKS, rest="sparse"), r"blocks:1024 \(then sparse: index .*\)"),
    ):
        with pytest.raises(
            PackError, match=rf"with prefill blocks:1024, and {asked} is asked for: omit"
        ):
            model.context(N + 100, store=Disk(pack), prefill=other)
    build_pack(model, tmp_path / "exact", ids_of(model, 10), 100)
    with pytest.raises(PackError, match="with prefill exact, and blocks:1024 is asked for"):
        model.context(100, store=Disk(tmp_path / "exact"), prefill=BLOCKS)
    block = replace(BLOCKS, rest="block")
    build_pack(model, tmp_path / "block", ids_of(model, N), N + 100, prefill=block)
    assert pack_info(tmp_path / "block").prefill == ("blocks:1024 (to the end, up to token 2,700)")
    with model.context(N + 100, store=Disk(tmp_path / "block")) as context:
        assert context.plan.prefill == block
    sparse = replace(BLOCKS, rest="sparse", until=N)
    build_pack(model, tmp_path / "sparse", ids_of(model, N), N + 100, prefill=sparse)
    said = pack_info(tmp_path / "sparse").prefill
    assert said.startswith("blocks:1024 (up to token 2,048, then sparse: index ")
    with model.context(N + 100, store=Disk(tmp_path / "sparse")) as context:
        assert isinstance(context.plan.prefill, BlocksPrefill)
        assert (context.plan.prefill.rest, context.plan.prefill.until) == ("sparse", UNTIL)


def test_sizes_that_there_are_not_are_refused(model: Model, tmp_path: Path) -> None:
    with model.context(100, store=Disk(tmp_path / "pack"), prefill=BLOCKS) as context:
        context.prefill([5, 6])
    data = json.loads((tmp_path / "pack" / "pack.json").read_text())
    assert data["prefill"]["size"] == 1024
    for size, words in (
        (0, "is not one that kvarn writes"),
        ("1024", "is not one that kvarn writes"),
        (5, "blocks:5: expected a multiple of 512 tokens, from 512 on"),
    ):
        write_checked(tmp_path / "pack", {**data, "prefill": {**data["prefill"], "size": size}})
        with pytest.raises(kvarn.KvarnError, match=words):
            model.context(100, store=Disk(tmp_path / "pack"))


def test_what_follows_a_pack_reads_all_of_it(pack: Path, model: Model, tmp_path: Path) -> None:
    ids = ids_of(model, 50)
    for store in (Disk(pack, read_only=True), Disk(tmp_path / "child", parent=pack)):
        with model.context(N + 100, store=store, prefill=BLOCKS) as context:
            told = "prefill blocks: what follows a pack is read exact"
            assert context.plan.prefill == Exact() and told in context.notices
            context.prefill(ids)
    assert pack_info(tmp_path / "child").prefill == "exact"


def test_blocks_of_a_pack_that_is_cut_to_nothing_are_forgotten(pack: Path, model: Model) -> None:
    ids, sparse = ids_of(model, N, seed=1), SparsePrefill(k=40, from_=1024)
    store = Disk(pack, read_only=True)
    with (
        model.context(N, store=store, prefill=sparse) as context,
        model.context(N, prefill=sparse) as fresh,
    ):
        context.truncate(0)
        np.testing.assert_array_equal(context.prefill(ids), fresh.prefill(ids))
