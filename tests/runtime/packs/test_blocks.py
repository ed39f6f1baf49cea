"""One pack of blocks that several processes read: the bytes of the pack that one process writes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import kvarn
from kvarn.commands.terminal.tables import pack_table, texts_table
from kvarn.runtime.attend import TopK
from kvarn.runtime.model import Model
from kvarn.runtime.packs import blocks
from kvarn.runtime.packs.blocks import build_pack_in_blocks
from kvarn.runtime.packs.notes import texts_in
from kvarn.runtime.packs.pack import build_pack, index_pack, pack_info
from kvarn.runtime.prefill import BlocksPrefill
from kvarn.runtime.store import Disk
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.contents import take_lock
from kvarn.runtime.store.disk.format.parts_text import parts_folder
from kvarn.runtime.store.disk.info import pack_head

from ..reading import ids_of
from .block_packs import BLOCKS, CTX, N, saved, stopped_in, texts_in_parts

WORKER = textwrap.dedent(
    """
    import json, os, signal, sys
    import kvarn
    from kvarn.runtime.packs.blocks import build_pack_in_blocks

    model_path, pack, ids, dies_at = sys.argv[1:]

    def begin(name, context):
        print("begins", name, len(context.tokens), flush=True)
        def tell(done, total):
            if name == dies_at and done >= 1536:
                os.kill(os.getpid(), signal.SIGKILL)
        return tell

    model, ids = kvarn.load(model_path, threads=1), json.loads(open(ids).read())
    _, n_read = build_pack_in_blocks(model, pack, ids, kvarn.BlocksPrefill(2048), 8192, begin)
    print(n_read)
    """
)


@pytest.mark.parametrize(
    ("n_tokens", "kv_type", "prefill"),
    [
        (N, "f16", BLOCKS),
        (2 * 2048, "q8_0", BLOCKS),
        (2 * 3072 + 1, "q4_0", BlocksPrefill(3072)),
        (3 * 1024 + 5, "q8_0", BlocksPrefill(1024)),
        (N, "f16", replace(BLOCKS, rest="sparse")),
        (N, "f16", replace(BLOCKS, until=4096)),
        (N, "q8_0", replace(BLOCKS, rest="block")),
        (2048 + 1024, "f16", replace(BLOCKS, rest="block")),
        (N, "f16", replace(BLOCKS, rest="block", until=5000)),
        (4095, "f16", BLOCKS),  # one block
        (5, "f16", BLOCKS),
    ],
)
def test_a_pack_read_in_parts_is_that_of_one_process(
    model: Model, tmp_path: Path, n_tokens: int, kv_type: str, prefill: BlocksPrefill
) -> None:
    ids = ids_of(model, n_tokens)
    one, parts = (Disk(tmp_path / name, kv_type, kv_type) for name in ("one", "parts"))
    build_pack(model, one, ids, CTX, prefill)
    info, n_read = build_pack_in_blocks(model, parts, ids, prefill, CTX)
    assert (info.n_tokens, n_read, info.complete) == (n_tokens, n_tokens, True)
    assert saved(tmp_path / "parts") == saved(tmp_path / "one")
    for path in (tmp_path / "one", tmp_path / "parts"):
        index_pack(model, path, TopK(budget=40), CTX)
    assert saved(tmp_path / "parts") == saved(tmp_path / "one")
    assert {path.name for path in tmp_path.iterdir()} == {"one", "parts"}
    assert build_pack_in_blocks(model, parts, ids, prefill, CTX)[1] == 0


def test_processes_share_the_blocks_and_go_on_where_one_was_killed(
    model: Model, tmp_path: Path
) -> None:
    ids = ids_of(model, N)
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)
    (tmp_path / "ids").write_text(json.dumps(ids))
    pack = tmp_path / "pack"

    def worker(dies_at: str = "") -> subprocess.Popen[str]:
        code = [sys.executable, "-c", WORKER, str(model.path), str(pack), str(tmp_path / "ids")]
        return subprocess.Popen([*code, dies_at], stdout=subprocess.PIPE, text=True)

    assert worker("block 2 of 3").wait(timeout=120) == -signal.SIGKILL
    listed = {text.name: (text.n_tokens, text.n_died, text.state) for text in texts_in_parts(pack)}
    assert listed == {"00000": (1024, 0, "read"), "00001": (1024, 0, "unfinished")}
    others = [worker(), worker()]
    told = [process.communicate(timeout=120)[0] for process in others]
    assert [process.returncode for process in others] == [0, 0]
    assert "begins block 2 of 3 3072" in "".join(told)  # from its last commit
    assert "block 1 of 3" not in "".join(told)
    assert sum(int(lines.split()[-1]) for lines in told) == N - 3072  # none is read twice
    assert saved(pack) == saved(tmp_path / "one")
    assert not parts_folder(pack).exists()


def test_a_list_of_blocks_counts_the_tokens_of_each(model: Model, tmp_path: Path) -> None:
    """Not those before it, also where nothing is read yet; the first segment is no part."""
    ids, pack, moved = ids_of(model, N), tmp_path / "before" / "pack", tmp_path / "after" / "pack"
    seen: dict[str, list[tuple[int, int, str]]] = {}

    def listed(pack: Path) -> list[tuple[int, int, str]]:
        return [(text.n_tokens, text.goal, text.state) for text in texts_in_parts(pack)]

    def begin(name: str, context: kvarn.Context):
        if name.startswith("block"):
            seen[name] = listed(moved)
        return lambda done, total: None

    stopped_in(model, pack, ids, "block 1 of 3", 512)
    (tmp_path / "before").rename(tmp_path / "after")
    build_pack_in_blocks(model, moved, ids, BLOCKS, CTX, begin)
    first = (1024, 1024, "read")
    assert seen["block 2 of 3"] == [first, (0, 2048, "being read")]
    assert seen["block 3 of 3"] == [first, (2048, 2048, "read"), (0, 2048, "being read")]


@pytest.mark.parametrize(
    ("name", "after"),
    [("the first tokens", 512), ("block 1 of 3", 512), ("block 3 of 3", 1536), ("the rest", 512)],
)
def test_a_process_that_was_stopped_is_gone_on_from(
    model: Model, tmp_path: Path, name: str, after: int
) -> None:
    ids = ids_of(model, N)
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)
    stopped_in(model, tmp_path / "pack", ids, name, after)
    build_pack_in_blocks(model, tmp_path / "pack", ids, BLOCKS, CTX)
    assert saved(tmp_path / "pack") == saved(tmp_path / "one")


@pytest.mark.parametrize(
    ("name", "n_read"),
    [("the first tokens", None), ("block 1 of 3", 0), ("block 3 of 3", 2), ("the rest", None)],
)
def test_a_pack_tells_how_many_blocks_are_read(
    model: Model, tmp_path: Path, name: str, n_read: int | None
) -> None:
    """From the first tokens on until the blocks are joined; in all that lists packs."""
    pack = tmp_path / "pack"
    stopped_in(model, pack, ids_of(model, N), name, 512)
    (text,) = (text for text in texts_in(tmp_path) if text.name == "pack")
    expected = (0, 0) if n_read is None else (n_read, 3)
    for facts in (pack_info(pack), pack_head(pack), text):
        assert (facts.n_blocks_read, facts.n_blocks) == expected
    said = pack_info(pack).progress
    assert said.endswith("blocks read") == (n_read is not None)
    if n_read is not None:
        assert said == f"1,024 of {N:,}, {n_read} of 3 blocks read"
        assert said in pack_table([pack_info(pack)]) and said in texts_table([text])


@pytest.mark.parametrize("n_before", [512, 1536, 3072, 4608, 6500])
def test_a_pack_that_one_process_began_is_gone_on_with(
    model: Model, tmp_path: Path, n_before: int
) -> None:
    """Also within a block, and behind the last one."""
    ids, pack = ids_of(model, N), tmp_path / "pack"
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)
    with model.context(CTX, store=Disk(pack, goal=N), prefill=BLOCKS) as context:
        reading = context.reading(ids)
        while len(context.tokens) < n_before:
            reading.step()
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert saved(pack) == saved(tmp_path / "one")


def test_a_process_that_waits_says_so_once(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, pack, told = ids_of(model, N), tmp_path / "pack", []
    stopped_in(model, pack, ids, "block 2 of 3")
    other = take_lock(parts_folder(pack) / "00001")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 20:
            os.close(other)

    slept: list[float] = []
    monkeypatch.setattr(blocks, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(model, "tell", told.append)
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert len(slept) == 20
    assert told == [f"{pack}: waiting for what other processes read"]


def test_the_folder_of_a_pack_and_its_parts_may_be_moved(model: Model, tmp_path: Path) -> None:
    """Machines may have it under different paths."""
    ids, before = ids_of(model, N), tmp_path / "before"
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)
    stopped_in(model, before / "pack", ids, "block 2 of 3")
    before.rename(tmp_path / "after")
    (tmp_path / "link").symlink_to(tmp_path / "after")
    _, n_read = build_pack_in_blocks(model, tmp_path / "link" / "pack", ids, BLOCKS, CTX)
    assert n_read == N - 2048 - 1024
    assert saved(tmp_path / "after" / "pack") == saved(tmp_path / "one")


@pytest.mark.parametrize("name", [".", "../packs/p", "n" * 255])
def test_a_pack_may_have_any_name(
    model: Model, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one to which nothing can be added."""
    folder = tmp_path / "packs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    ids = ids_of(model, 4096)
    stopped_in(model, Path(name), ids, "block 2 of 2")
    (left,) = Path(name).resolve().parent.glob(".*.parts")
    build_pack_in_blocks(model, name, ids, BLOCKS, CTX)
    assert not left.exists() and pack_info(Path(name)).complete and not verify(Path(name))
