"""A pack can begin with another one's segments, and stores only what is its own."""

from pathlib import Path

import pytest

from kvarn.runtime.store import DiskStore
from kvarn.runtime.store.disk.factory import _parent
from kvarn.runtime.store.disk.folder import PackFolder, create
from kvarn.runtime.store.disk.format.manifest import Manifest
from kvarn.runtime.store.disk.verify import verify

from .packs import FACTS, check, fill, fill_column, opened, random_tokens, save, write

TOKENS = random_tokens(2500)


@pytest.fixture
def above(pack: Path) -> Path:
    write(pack, TOKENS)
    return pack


def child_of(above: Path, path: Path) -> DiskStore:
    folder = PackFolder(above)
    create(path, Manifest.new(FACTS, "f16", "f16", False, _parent(folder)))
    store = opened(path)
    store.adopt(folder.state())
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
    assert (tmp_path / "child" / "layer-000.kv").stat().st_size == n
    assert verify(tmp_path / "child") == []


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
