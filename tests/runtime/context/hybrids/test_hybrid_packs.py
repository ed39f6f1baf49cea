"""Packs of models whose layers carry a state: their checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import kvarn
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.folder import PackFolder

from .counting import N_CTX, after, counted


def test_a_pack_is_opened_without_reading(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    pack = tmp_path / "pack"
    with model.context(N_CTX, store=kvarn.Disk(pack)) as context:
        context.prefill(ids)
        context.decode(5)
    assert verify(pack) == []
    expected = after(model, ids, [5]), after(model, ids, [5, 9])
    for read_only in (True, False):
        disk = kvarn.Disk(pack, read_only=read_only)
        with counted(model) as counts, model.context(N_CTX, store=disk) as context:
            np.testing.assert_array_equal(context.logits, expected[0])
            np.testing.assert_array_equal(context.decode(9), expected[1])
            assert counts == [1]
            if read_only:
                context.truncate(1300)
                context.prefill(ids[1300:])
                np.testing.assert_array_equal(context.logits, after(model, ids))


def test_a_killed_pack_reads_again_what_its_last_checkpoint_lacks(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    with model.context(N_CTX, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids[:1500])
        for token in (5, 9, 11):
            context.decode(token)
        context.commit()
        shutil.copytree(tmp_path / "pack", tmp_path / "killed")
    expected = after(model, ids[:1500], [5, 9, 11, 4])
    with (
        counted(model) as counts,
        model.context(N_CTX, store=kvarn.Disk(tmp_path / "killed")) as context,
    ):
        assert context.tokens == [*ids[:1500], 5, 9, 11]
        np.testing.assert_array_equal(context.decode(4), expected)
    assert sum(counts[:-1]) <= 512 + 5 and verify(tmp_path / "killed") == []


def test_a_child_goes_on_from_its_parents_checkpoints(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    with model.context(N_CTX, store=kvarn.Disk(parent)) as context:
        context.prefill(ids[:1900])
    disk, expected = kvarn.Disk(child, parent=parent), after(model, ids)
    with counted(model) as counts, model.context(N_CTX, store=disk) as context:
        context.truncate(1100)
        context.prefill(ids[1100:])
        np.testing.assert_array_equal(context.logits, expected)
    assert sum(counts) - 1000 <= 1024
    with model.context(N_CTX, store=kvarn.Disk(child)) as context:
        np.testing.assert_array_equal(context.decode(7), after(model, ids, [7]))
    assert verify(child) == []


def test_a_child_does_without_what_its_parent_reads_later(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    """It has its parent's newest checkpoint, and uses none that is after other tokens."""
    parent, child = tmp_path / "parent", tmp_path / "child"
    with model.context(N_CTX, store=kvarn.Disk(parent)) as context:
        context.prefill(ids[:1900])
    model.context(N_CTX, store=kvarn.Disk(child, parent=parent)).close()
    with model.context(N_CTX, store=kvarn.Disk(parent)) as context:
        context.truncate(1030)
        context.prefill(ids[:870])
    expected = after(model, ids[:1900], [7]), after(model, ids)
    disk = kvarn.Disk(child)
    with counted(model) as counts, model.context(N_CTX, store=disk) as context:
        np.testing.assert_array_equal(context.decode(7), expected[0])
        assert counts == [1]
        context.truncate(1600)
        context.prefill(ids[1600:])
        np.testing.assert_array_equal(context.logits, expected[1])


def test_a_damaged_checkpoint_is_told_and_passed_over(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    pack = tmp_path / "pack"
    with model.context(N_CTX, store=kvarn.Disk(pack)) as context:
        context.prefill(ids)
    newest = PackFolder(pack).last_commit().states[-1]
    size = PackFolder(pack).manifest.state_bytes
    with (pack / "states").open("r+b") as file:
        file.seek(newest.slot * size + 8)
        file.write(b"\xff\xff")
    assert [line.split(": ", 1)[1] for line in verify(pack)] == [
        f"states is damaged in slot {newest.slot}"
    ]
    with model.context(N_CTX, store=kvarn.Disk(pack)) as context:
        np.testing.assert_array_equal(context.decode(7), after(model, ids, [7]))


def test_a_pack_is_exported_with_its_checkpoints(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    from kvarn.runtime.store.disk.archive import export_pack, import_pack

    with model.context(N_CTX, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids)
    export_pack(tmp_path / "pack", tmp_path / "file")
    import_pack(tmp_path / "file", tmp_path / "copy")
    assert verify(tmp_path / "copy") == []
    disk, expected = kvarn.Disk(tmp_path / "copy"), after(model, ids, [7])
    with counted(model) as counts, model.context(N_CTX, store=disk) as context:
        np.testing.assert_array_equal(context.decode(7), expected)
    assert counts == [1]
