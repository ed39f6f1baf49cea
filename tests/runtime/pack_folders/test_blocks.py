"""One pack of blocks that several processes read: the bytes of the pack that one process writes."""

import errno
import json
import os
import shutil
import signal
import struct
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
from kvarn.runtime.pack_folders import blocks
from kvarn.runtime.pack_folders.blocks import build_pack_in_blocks
from kvarn.runtime.pack_folders.notes import note_path, texts_in
from kvarn.runtime.packs import build_pack, index_pack, pack_info, remove_pack
from kvarn.runtime.prefill import BlocksPrefill, PrefillError
from kvarn.runtime.store import Disk, PackBusy, PackError
from kvarn.runtime.store import windowed as store_windows
from kvarn.runtime.store.disk import files
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.contents import take_lock
from kvarn.runtime.store.disk.errors import PackInParts
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format.manifest import Manifest
from kvarn.runtime.store.disk.format.parts_text import parts_folder
from kvarn.runtime.store.disk.info import pack_head
from kvarn.runtime.store.disk.parts import sharing
from kvarn.runtime.store.disk.saving.writer import Writer

from ..reading import ids_of

BLOCKS = BlocksPrefill(2048)
N = 3 * 2048 + 700
CTX = 8192
WORKER = textwrap.dedent(
    """
    import json, os, signal, sys
    import kvarn
    from kvarn.runtime.pack_folders.blocks import build_pack_in_blocks

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


@pytest.fixture(scope="module", params=[128, 1500])
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The default model, most of whose layers have a window: its own, or one of two segments."""
    path, model = tmp_path_factory.mktemp("windowed") / "model.gguf", kvarn.load()
    data, key = bytearray(model.path.read_bytes()), b".attention.sliding_window"
    value = data.index(key) + len(key) + 4
    assert data[value - 4 : value + 4] == struct.pack("<II", 4, 128)
    data[value : value + 4] = struct.pack("<I", request.param)
    path.write_bytes(data)
    return kvarn.load(path)


STOP = replace(BLOCKS, windows="stop")


@pytest.mark.parametrize(
    ("n_tokens", "prefill", "n_before"),
    [
        (N, STOP, 0),
        (2 * 2048, STOP, 0),  # no rest
        (N, replace(STOP, rest="block"), 0),
        (N, STOP, 1536),
        (N, STOP, 3072),  # within a block, whose windows reach what is there
        (N, STOP, 4608),
    ],
)
def test_a_model_with_windows_is_read_in_parts(
    windowed: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    n_tokens: int,
    prefill: BlocksPrefill,
    n_before: int,
) -> None:
    """Also what one process began; what is read later goes on with the same bits."""
    monkeypatch.setattr(store_windows, "SPACING", 1)
    ids, one, parts = ids_of(windowed, n_tokens), tmp_path / "one", tmp_path / "parts"
    for path in (one, parts) if n_before else ():
        with windowed.context(CTX, store=Disk(path, goal=N), prefill=prefill) as context:
            reading = context.reading(ids)
            while len(context.tokens) < n_before:
                reading.step()
    build_pack(windowed, one, ids, CTX, prefill)
    build_pack_in_blocks(windowed, parts, ids, prefill, CTX)
    assert saved(parts) == saved(one)
    assert "windows stop" in str(pack_info(parts).prefill)
    logits = []
    for path in (one, parts):
        with windowed.context(CTX, store=Disk(path, read_only=True)) as context:
            context.truncate(n_tokens - 1100)  # from a checkpoint
            logits.append(context.prefill(ids[n_tokens - 1100 :]))
    assert (logits[0] == logits[1]).all()


def test_windows_of_a_block_that_was_stopped_go_on(windowed: Model, tmp_path: Path) -> None:
    ids = ids_of(windowed, N)
    build_pack(windowed, tmp_path / "one", ids, CTX, STOP)
    stopped_in(windowed, tmp_path / "pack", ids, "block 3 of 3", 1536, STOP)
    build_pack_in_blocks(windowed, tmp_path / "pack", ids, STOP, CTX)
    assert saved(tmp_path / "pack") == saved(tmp_path / "one")


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


def test_nothing_else_writes_to_a_pack_whose_blocks_are_read(model: Model, tmp_path: Path) -> None:
    ids, pack = ids_of(model, N), tmp_path / "pack"
    stopped_in(model, pack, ids, "block 2 of 3")
    for write in (
        lambda: build_pack(model, pack, ids, CTX, BLOCKS),
        lambda: index_pack(model, pack, TopK(budget=40), CTX),
        lambda: model.context(CTX, store=Disk(pack), prefill=BLOCKS),
    ):
        with pytest.raises(PackInParts, match="go on with `kvarn pack build --each-block`"):
            write()
    with pytest.raises(PackError, match="it is read from another text"):
        build_pack_in_blocks(model, pack, ids_of(model, N, seed=1), BLOCKS, CTX)
    with pytest.raises(PackError, match="its KV cache is K f16, V f16, asked for is K q8_0"):
        build_pack_in_blocks(model, Disk(pack, "q8_0", "q8_0"), ids, BLOCKS, CTX)
    with pytest.raises(PackError, match="with --prefill blocks:2048, and blocks:1024 is asked"):
        build_pack_in_blocks(model, pack, ids, BlocksPrefill(1024), CTX)
    with sharing(pack), sharing(pack):
        with pytest.raises(PackBusy):
            model.context(CTX, store=Disk(pack), prefill=BLOCKS)
        with pytest.raises(PackBusy):
            remove_pack(pack)
    with model.context(CTX, store=Disk(pack, read_only=True)) as context:
        assert list(context.tokens) == ids[:1024]
    text = parts_folder(pack) / "text"
    text.rename(tmp_path / "text")  # an older kvarn knows nothing of it
    with model.context(CTX, store=Disk(pack), prefill=BLOCKS) as context:
        context.prefill(ids[1024:2048])
        with pytest.raises(PackBusy), sharing(pack):
            pass
    (tmp_path / "text").rename(text)
    with pytest.raises(PackError, match="it was written to while its blocks were read"):
        build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert not remove_pack(pack)
    assert not list(tmp_path.iterdir())


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


def test_joining_may_fail_and_is_done_again(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is written, and the commit is not."""
    ids, pack = ids_of(model, N), tmp_path / "pack"
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    stopped_in(model, pack, ids, "block 3 of 3", 2048)
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_put", fails)
        with pytest.raises(PackError, match="cannot be written: Input/output error"):
            build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    with pytest.raises(PackError, match="with --prefill blocks:2048, and blocks:4096 is asked"):
        build_pack_in_blocks(model, pack, ids, BlocksPrefill(4096), CTX)  # whose parts are whole
    assert pack_info(pack).n_tokens == 1024 and not verify(pack)
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert saved(pack) == saved(tmp_path / "one")


@pytest.mark.parametrize("has_begun", [False, True])
def test_parts_of_a_pack_that_is_no_more_are_not_taken(
    model: Model, tmp_path: Path, has_begun: bool
) -> None:
    """Its folder was removed by other means, or a process ended before it had removed the parts,
    of which it removes the text first."""
    one, other, pack = ids_of(model, N), ids_of(model, N, seed=1), tmp_path / "pack"
    build_pack(model, tmp_path / "other", other, CTX, BLOCKS)
    stopped_in(model, pack, one, "block 3 of 3")
    if has_begun:
        (parts_folder(pack) / "text").unlink()
    pack.rename(tmp_path / "gone")
    build_pack_in_blocks(model, pack, other, BLOCKS, CTX)
    assert saved(pack) == saved(tmp_path / "other")


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


@pytest.mark.parametrize(
    "text",
    ["[" * 4000, '{"pack": "", "digest": "", "n_segments": 1e999}', '{"pack": "", "digest": ""}'],
)
def test_a_damaged_text_is_told_by_name(model: Model, tmp_path: Path, text: str) -> None:
    ids, pack = ids_of(model, N), tmp_path / "pack"
    stopped_in(model, pack, ids, "block 2 of 3")
    (parts_folder(pack) / "text").write_text(text)
    with pytest.raises(PackError, match=r"\.pack\.parts/text is damaged"):
        build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert not remove_pack(pack) and not list(tmp_path.iterdir())


def test_a_pack_in_place_of_a_part_is_refused(model: Model, tmp_path: Path) -> None:
    ids, pack = ids_of(model, N), tmp_path / "pack"
    stopped_in(model, pack, ids, "block 2 of 3")
    build_pack(model, parts_folder(pack) / "00002", ids_of(model, 5), CTX)
    with pytest.raises(PackError, match=r"00002: it is no part of a pack: remove it"):
        build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)


def test_a_part_that_names_another_pack_is_refused_and_writes_nothing_there(
    model: Model, tmp_path: Path
) -> None:
    """Even one of the same id, as a copy has, whose checksum is right."""
    ids, pack, other = ids_of(model, N), tmp_path / "pack", tmp_path / "other"
    stopped_in(model, pack, ids, "block 2 of 3")
    shutil.copytree(pack, other)
    before = {file.name: file.read_bytes() for file in other.iterdir()}
    part = parts_folder(pack) / "00001"
    manifest = Manifest.read(part)
    assert manifest.parent is not None
    for named in (str(other), "../../other", f"../../../{tmp_path.name}/other"):
        crafted = replace(manifest, parent=replace(manifest.parent, path=named))
        (part / "pack.json").write_bytes(crafted.encode())
        with pytest.raises(PackError, match=r"00001: it is no part of .*other, which it names"):
            build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert before == {file.name: file.read_bytes() for file in other.iterdir()}


def test_what_a_link_points_to_is_left_alone(model: Model, tmp_path: Path) -> None:
    ids, pack, other = ids_of(model, N), tmp_path / "pack", tmp_path / "other"
    other.mkdir()
    (other / "text").write_text(text := '{"pack": "", "digest": "", "n_segments": 1}')
    parts_folder(pack).symlink_to(other)
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert (other / "text").read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {"other", "pack"}


def test_a_process_may_end_between_joining_and_removing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, pack = ids_of(model, N), tmp_path / "pack"
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "remove_parts", fail)
        with pytest.raises(InterruptedError):
            build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert pack_info(pack).n_tokens == 3 * 2048
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)
    assert saved(pack) == saved(tmp_path / "one")
    assert not parts_folder(pack).exists()


def fail(*_: object) -> None:
    raise InterruptedError


def test_a_full_disk_is_told_in_one_line_and_gone_on_from(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, pack = ids_of(model, N), tmp_path / "pack"
    stopped_in(model, pack, ids, "block 2 of 3")

    def full(fd: int, n_bytes: int, offset: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "make_room", full)
        message = "cannot be written: No space left on device; it keeps its last commit"
        with pytest.raises(PackError, match=message) as error:
            build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert "\n" not in str(error.value)
    (failed,) = [text for text in texts_in_parts(pack) if text.state == "failed"]
    assert failed.name == "00001" and "No space left" in failed.reason
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)
    assert saved(pack) == saved(tmp_path / "one")


def test_a_block_of_which_processes_die_is_given_up(model: Model, tmp_path: Path) -> None:
    ids, pack = ids_of(model, N), tmp_path / "pack"
    stopped_in(model, pack, ids, "block 2 of 3")
    note = note_path(parts_folder(pack) / "00001")
    facts = json.loads(note.read_text())
    note.write_text(json.dumps({**facts, "n_died": 4, "n_tokens": 3072}))
    given_up = rf"^block 2 of {pack} was given up: 4 processes died of it .*00001 to try again$"
    with pytest.raises(kvarn.KvarnError, match=given_up):
        build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    note.unlink()  # as the line says
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    build_pack(model, tmp_path / "one", ids, CTX, BLOCKS)
    assert saved(pack) == saved(tmp_path / "one")


def test_deaths_of_a_block_count_only_where_nothing_was_saved_since(
    model: Model, tmp_path: Path
) -> None:
    """On machines that are taken away again and again, too: each death is after a commit."""
    ids, pack = ids_of(model, N), tmp_path / "pack"
    stopped_in(model, pack, ids, "block 2 of 3")
    note = note_path(parts_folder(pack) / "00001")
    facts = json.loads(note.read_text())
    n_saved = pack_head(parts_folder(pack) / "00001").n_tokens
    assert n_saved > facts["n_tokens"]  # which it had when the attempt began
    note.write_text(json.dumps({**facts, "n_died": 4}))
    (text,) = (text for text in texts_in_parts(pack) if text.name == "00001")
    assert (text.state, text.n_died) == ("unfinished", 0)
    build_pack_in_blocks(model, pack, ids, BLOCKS, CTX)
    assert pack_info(pack).complete


def test_what_cannot_be_read_apart_is_refused_by_name(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = tmp_path / "pack"
    with pytest.raises(PrefillError, match=r"blocks of 1,536 tokens .* a multiple of 1,024"):
        build_pack_in_blocks(model, pack, ids_of(model, N), BlocksPrefill(1536), CTX)
    windowed = kvarn.load()
    with pytest.raises(PrefillError, match=r"kvarn-mini has layers .* --prefill-windows stop"):
        build_pack_in_blocks(windowed, pack, "The mill stood.", BLOCKS)
    monkeypatch.setattr(blocks, "states_of", lambda config: object())
    with pytest.raises(PrefillError, match="has layers that carry a state"):
        build_pack_in_blocks(model, pack, ids_of(model, N), BLOCKS, CTX)
    with pytest.raises(kvarn.KvarnError, match="nothing to read: the text is empty"):
        monkeypatch.undo()
        build_pack_in_blocks(model, pack, "", BLOCKS, CTX)
    assert not list(tmp_path.iterdir())
