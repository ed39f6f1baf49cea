"""A pack whose blocks are read, where something fails, is damaged or another's: one line."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.attend import TopK
from kvarn.runtime.model import Model
from kvarn.runtime.packs import blocks
from kvarn.runtime.packs.blocks import build_pack_in_blocks
from kvarn.runtime.packs.notes import note_path
from kvarn.runtime.packs.pack import build_pack, index_pack, pack_info, remove_pack
from kvarn.runtime.prefill import BlocksPrefill, PrefillError
from kvarn.runtime.store import Disk, PackBusy, PackError
from kvarn.runtime.store.disk import files
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.errors import PackInParts
from kvarn.runtime.store.disk.format.manifest import Manifest
from kvarn.runtime.store.disk.format.parts_text import parts_folder
from kvarn.runtime.store.disk.info import pack_head
from kvarn.runtime.store.disk.parts import sharing
from kvarn.runtime.store.disk.saving.writer import Writer

from ..reading import ids_of
from .block_packs import BLOCKS, CTX, N, saved, stopped_in, texts_in_parts


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
    with pytest.raises(PackError, match="with prefill blocks:2048, and blocks:1024 is asked"):
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
    with pytest.raises(PackError, match="with prefill blocks:2048, and blocks:4096 is asked"):
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
