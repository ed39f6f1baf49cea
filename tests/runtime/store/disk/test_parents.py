"""A pack can begin with another one's segments, and stores only what is its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.runtime.store import DiskStore, PackError
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.contents import create
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format.manifest import Manifest
from kvarn.runtime.store.disk.parents import shared_segments

from .packs import (
    MIXED,
    WINDOWS,
    check,
    fill,
    fill_column,
    holds,
    make,
    opened,
    random_tokens,
    save,
    write,
)

TOKENS = random_tokens(2500)


@pytest.fixture(params=[(), WINDOWS, (1500, 0), MIXED], ids=str)
def above(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    make(tmp_path / "pack", windows=request.param)
    write(tmp_path / "pack", TOKENS)
    return tmp_path / "pack"


def child_of(above: Path, path: Path) -> DiskStore:
    folder = PackFolder(above)
    state = folder.state(recent=True)
    manifest = Manifest(folder.manifest.model, "f16", "f16", False, shared_segments(folder, state))
    create(path, replace(manifest, windows=folder.manifest.windows), None, state.recent)
    store = opened(path)
    store.adopt(folder)
    return store


def test_a_child_has_all_and_stores_its_own(above: Path, tmp_path: Path) -> None:
    store = child_of(above, tmp_path / "child")
    check(store, TOKENS)
    assert not list((tmp_path / "child").glob("*.kv"))
    tokens = TOKENS + random_tokens(1000, seed=1)
    fill(store, tokens, 2500)
    fill_column(store, tokens)
    save(store, tokens)
    store.close()
    again = opened(tmp_path / "child")
    assert again.saved.tokens == tokens
    check(again, tokens)
    n = again.layout.segment_bytes(1)
    files = sorted((tmp_path / "child").glob("layer-*.kv"))
    assert files[0].stat().st_size == n
    assert verify(tmp_path / "child") == []


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_late_child_saves_what_it_copies_with_what_it_reads(
    above: Path, tmp_path: Path, is_saved: bool
) -> None:
    """Killed before, it is sound, and has the full segments that it shares."""
    child, folder = tmp_path / "child", PackFolder(above)
    state = folder.state(recent=True)
    manifest = Manifest(folder.manifest.model, "f16", "f16", False, shared_segments(folder, state))
    create(child, replace(manifest, windows=folder.manifest.windows), None, state.recent)
    before = {path.name: path.read_bytes() for path in child.iterdir()}
    store = opened(child)
    store.adopt(folder, late=True)
    check(store, TOKENS)
    assert store.saved.tokens == TOKENS
    assert {path.name: path.read_bytes() for path in child.iterdir()} == before
    tokens = TOKENS + random_tokens(900, seed=1)
    if is_saved:
        fill(store, tokens, 2500)
        save(store, tokens)
    store.close()
    assert holds(child, tokens if is_saved else TOKENS[:2048])


@pytest.mark.parametrize("cut", [0, 700, 1024, 1500, 2400])
def test_a_child_can_be_cut_within_its_parent(above: Path, tmp_path: Path, cut: int) -> None:
    store = child_of(above, tmp_path / "child")
    tokens = TOKENS[:cut] + random_tokens(1700, seed=2)
    fill(store, tokens, cut)
    save(store, tokens)
    store.close()
    check(opened(tmp_path / "child"), tokens)
    assert opened(tmp_path / "child", writable=False).saved.tokens == tokens
    check(opened(above), TOKENS)


def test_a_parent_goes_on_and_its_children_stay(above: Path, tmp_path: Path) -> None:
    child_of(above, tmp_path / "child").close()
    store = opened(above)
    other = TOKENS[:10] + random_tokens(3000, seed=3)
    fill(store, other, 10)
    save(store, other)
    store.close()
    check(opened(tmp_path / "child"), TOKENS)
    grandchild = child_of(tmp_path / "child", tmp_path / "grandchild")
    tokens = TOKENS + random_tokens(2000, seed=4)
    fill(grandchild, tokens, 2500)
    save(grandchild, tokens)
    grandchild.close()
    again = opened(tmp_path / "grandchild", writable=False)
    check(again, tokens)


def test_a_child_of_a_short_pack_copies_it(pack: Path, tmp_path: Path) -> None:
    write(pack, TOKENS[:300], column=False)
    child_of(pack, tmp_path / "child").close()
    again = opened(tmp_path / "child")
    assert again.saved.tokens == TOKENS[:300]
    check(again, TOKENS[:300])


def test_packs_that_are_moved_together_find_each_other(above: Path, tmp_path: Path) -> None:
    """Also by a link to the pack; and one that is moved alone finds its parent where it was."""
    child_of(above, tmp_path / "child").close()
    child_of(tmp_path / "child", tmp_path / "grandchild").close()
    (tmp_path / "there").mkdir()
    for name in ("pack", "child", "grandchild"):
        (tmp_path / name).rename(tmp_path / "there" / name)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "grandchild")
    for path in (tmp_path / "there" / "grandchild", tmp_path / "link"):
        check(opened(path, writable=False), TOKENS)
    assert not verify(tmp_path / "there" / "grandchild")
    (tmp_path / "there").rename(tmp_path / "here")
    child_of(tmp_path / "here" / "pack", tmp_path / "here" / "last").close()
    (tmp_path / "here" / "last").rename(tmp_path / "last")
    check(opened(tmp_path / "last"), TOKENS)


def test_a_pack_of_the_parents_name_is_no_parent(above: Path, tmp_path: Path) -> None:
    child_of(above, tmp_path / "child").close()
    above.rename(tmp_path / "gone")
    (tmp_path / "there").mkdir()
    (tmp_path / "child").rename(tmp_path / "there" / "child")
    make(tmp_path / "there" / "pack", windows=Manifest.read(tmp_path / "gone").windows)
    with pytest.raises(PackError, match=r"is pack \w+, expected"):
        opened(tmp_path / "there" / "child")


def test_a_parent_that_is_in_its_place_is_taken(above: Path, tmp_path: Path) -> None:
    """Though a pack of the same name stands beside the child."""
    (tmp_path / "there").mkdir()
    child_of(above, tmp_path / "there" / "child").close()
    child_of(above, tmp_path / "there" / above.name).close()
    check(opened(tmp_path / "there" / "child"), TOKENS)
