"""Packs of 5 full segments and an open one, with the indexes of `hash` and `topk`."""

from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.packs.pack import build_pack, index_pack

from ..reading import ids_of

N = 5200
TEXT = "The mill stood by the river {}, and wheel number {} turned all day. "


@pytest.fixture(scope="session")
def pack(model: kvarn.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tiny model, whose weights are not rounded: it has exact answers."""
    return _made(model, ids_of(model, N), tmp_path_factory.mktemp("packs") / "tiny")


@pytest.fixture(scope="session")
def mini() -> kvarn.Model:
    return kvarn.load()


@pytest.fixture(scope="session")
def mini_pack(mini: kvarn.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the model that ships with kvarn."""
    text = "".join(TEXT.format(i, i * i) for i in range(400))
    ids = mini.tokenizer.encode(text, bos=True)[:N]
    assert len(ids) == N
    return _made(mini, ids, tmp_path_factory.mktemp("packs") / "mini")


def _made(model: kvarn.Model, ids: list[int], path: Path) -> Path:
    build_pack(model, path, ids, N)
    for method in (kvarn.Hash(), kvarn.TopK()):
        index_pack(model, path, method)
    return path
