"""Packs that begin with packs: chains stay short, whatever is shared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvarn.runtime.model import Model
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.parents import MOST_DEPTH, depth_of

from ...reading import ids_of
from .conftest import Make
from .test_library import anew, read


def depths(folder: Path) -> list[int]:
    return [depth_of(PackFolder(path)) for path in folder.iterdir() if path.is_dir()]


def test_histories_that_change_at_their_ends_make_no_long_chain(
    make: Make, model: Model, tmp_path: Path
) -> None:
    library, ids = make(), ids_of(model, 1100)
    for turn in range(MOST_DEPTH + 4):
        ids = [*ids[:-30], *ids_of(model, 230, seed=turn)]
        lease = read(library, ids)
        assert turn == 0 or lease.cached == len(ids) - 230
        np.testing.assert_array_equal(lease.context.logits, anew(model, ids))
        library.release(lease)
    assert 1 < max(depths(tmp_path / "serve")) <= MOST_DEPTH
    library = make()
    lease = read(library, [*ids, 3])
    assert lease.cached == len(ids)
    np.testing.assert_array_equal(lease.context.logits, anew(model, [*ids, 3]))
    library.release(lease)
    for path in (tmp_path / "serve").iterdir():
        assert not path.is_dir() or verify(path) == []


def test_a_chain_within_one_segment_shares_with_the_first(
    make: Make, model: Model, tmp_path: Path
) -> None:
    library, ids = make(), ids_of(model, 1100)
    for turn in range(5):
        ids = [*ids[:-30], *ids_of(model, 60, seed=turn)]
        library.release(read(library, ids))
    assert max(depths(tmp_path / "serve")) == 1
