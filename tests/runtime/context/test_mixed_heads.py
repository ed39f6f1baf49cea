"""Contexts of models whose layers differ in their heads, or read keys and values of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.models.config import ModelConfig
from kvarn.models.layer import Layer
from kvarn.runtime.packs import pack_info
from kvarn.runtime.store import Disk, PackError, Ram
from kvarn.runtime.store.disk.archive import export_pack, import_pack
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format import manifest
from kvarn.runtime.store.disk.verify import verify

from ...models import tiny_cases, tiny_models
from ..reading import ids_of

N, N_CTX = 2100, 2400
NEXT = [5, 9, 11, 4]


@pytest.fixture(scope="module", params=["gemma4", "gemma4-shared", "gemma4-experts"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> kvarn.Model:
    return written(request.param, tmp_path_factory.mktemp("mixed"))


def written(name: str, folder: Path) -> kvarn.Model:
    (case,) = (case for case in tiny_cases.CASES if case.name == name)
    tiny_models.write(folder / "model.gguf", case, 1)
    return kvarn.load(folder / "model.gguf")


@pytest.fixture(scope="module")
def ids(model: kvarn.Model) -> list[int]:
    return ids_of(model, N)


def decoded(context: kvarn.Context, tokens: list[int] = NEXT) -> list[np.ndarray]:
    return [context.decode(token).copy() for token in tokens]


def after(model: kvarn.Model, ids: list[int], **options: Any) -> list[np.ndarray]:
    """The logits of a context that reads all at once, then generates."""
    with model.context(N_CTX, **options) as context:
        return [context.prefill(ids).copy(), *decoded(context)]


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
def test_a_pack_goes_on_as_if_never_closed(
    kv: str, model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "pack"
    with model.context(N_CTX, store=Disk(path, kv, kv)) as context:
        context.prefill(ids[:1300])
    with model.context(N_CTX, store=Disk(path)) as context:
        got = [context.prefill(ids[1300:]).copy(), *decoded(context, NEXT[:2])]
    assert verify(path) == []
    with model.context(N_CTX, store=Disk(path)) as context:
        got += decoded(context, NEXT[2:])
        context.truncate(700)  # before what windows hold
        context.prefill(ids[700:])
        got += decoded(context)
    want = after(model, ids, store=Ram(kv, kv))
    np.testing.assert_array_equal(got, [*want, *want[1:]])
    assert pack_info(path).n_tokens == N + len(NEXT)


def test_children_and_copies_hold_the_same(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    with model.context(N_CTX, store=Disk(tmp_path / "pack")) as context:
        context.prefill(ids)
    export_pack(tmp_path / "pack", tmp_path / "archive")
    import_pack(tmp_path / "archive", tmp_path / "copy")
    want = after(model, ids)[1:]
    for store in (
        Disk(tmp_path / "pack", read_only=True),
        Disk(tmp_path / "copy"),
        Disk(tmp_path / "child", parent=tmp_path / "pack"),
    ):
        with model.context(N_CTX, store=store) as context:
            np.testing.assert_array_equal(decoded(context), want)
    assert verify(tmp_path / "child") == []


def test_their_packs_have_a_format_of_their_own(
    model: kvarn.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.context(N_CTX, store=Disk(tmp_path / "pack")):
        pass
    data = json.loads((tmp_path / "pack" / "pack.json").read_text())
    heads = [[layer.n_kv_heads, layer.head_dim] for layer in model.config.kv_layers]
    assert data["format"] == 9 and data["model"]["heads"] == heads
    folder = PackFolder(tmp_path / "pack")
    assert [list(folder.manifest.model.heads_of(i)) for i in range(len(heads))] == heads
    monkeypatch.setattr(manifest, "FORMAT", 8)
    with pytest.raises(PackError, match="it has format 9, this kvarn reads formats up to 8"):
        PackFolder(tmp_path / "pack")


@pytest.mark.parametrize("n", [40, 512])
def test_rows_that_nobody_needs_are_not_computed(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last layer that stores keys and values; what is wanted keeps its bits."""
    model = written("gemma4-shared", tmp_path)
    ids, rows, known = np.array(ids_of(model, n), np.int32), [], Layer.finish

    def finish(layer: Layer, b: Any) -> None:
        rows.append(len(b.ids))
        known(layer, b)

    monkeypatch.setattr(Layer, "finish", finish)

    def read() -> list[np.ndarray]:
        with model.context(1024) as context:
            return [context.prefill(ids.tolist()).copy(), *decoded(context)]

    got = read()
    least = model.transformer.device.least_rows
    assert rows[:6] == [n] * 3 + [least] * 3
    monkeypatch.setattr(ModelConfig, "last_storing", 5)
    vars(model.config).pop("last_storing", None)
    rows.clear()
    want = read()
    assert rows[:6] == [n] * 5 + [least]
    np.testing.assert_array_equal(got, want)
