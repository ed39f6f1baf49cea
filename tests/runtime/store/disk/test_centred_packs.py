"""Packs of keys in 4 bits say what these lack, and keep it."""

import json
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn import Disk, Ram
from kvarn.runtime.model import Model
from kvarn.runtime.store import PackError
from kvarn.runtime.store.centre import mean_keys
from kvarn.runtime.store.disk import factory
from kvarn.runtime.store.disk.archive import export_pack, import_pack
from kvarn.runtime.store.disk.checking.verify import verify

from ...reading import ids_of

N = 700
KEEPS = [kvarn.Streaming(200), kvarn.HashEvict(200)]


@pytest.mark.parametrize("kind", ["q4_0", "q8_0"])
def test_packs_say_so(model: Model, tmp_path: Path, kind: str) -> None:
    with model.context(2048, store=Disk(tmp_path / "pack", kind, kind)) as context:
        wanted = context.prefill(ids_of(model, 1030)).copy()
    facts = json.loads((tmp_path / "pack" / "pack.json").read_text())
    assert ("centre" in facts["kv"]) == (kind == "q4_0")
    again = model.context(2048, store=Disk(tmp_path / "pack"))
    child = model.context(2048, store=Disk(tmp_path / "child", parent=tmp_path / "pack"))
    for context in (again, child):
        assert (context.store.centre is not None) == (kind == "q4_0")
        np.testing.assert_array_equal(context.decode(7), _after(model, kind, wanted))
        context.close()


def _after(model: Model, kind: str, wanted: np.ndarray) -> np.ndarray:
    context = model.context(2048, store=Ram(kind, kind))
    np.testing.assert_array_equal(context.prefill(ids_of(model, 1030)), wanted)
    return context.decode(7)


def test_a_pack_of_whole_keys_stays_one(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kvarn wrote them before."""
    with monkeypatch.context() as patched:
        patched.setattr("kvarn.runtime.store.disk.factory.has_centre", lambda *_: False)
        with model.context(2048, store=Disk(tmp_path / "pack", "q4_0", "q4_0")) as context:
            context.prefill(ids_of(model, 1030))
    for store in (
        Disk(tmp_path / "pack", read_only=True),
        Disk(tmp_path / "child", parent=tmp_path / "pack"),
    ):
        context = model.context(2048, store=store)
        assert context.store.centre is None
        whole = model.context(2048, store=Ram("q4_0", "q4_0", centred=False))
        whole.prefill(ids_of(model, 1030))
        np.testing.assert_array_equal(context.decode(7), whole.decode(7))
        context.close()


@pytest.fixture
def pack(model: Model, tmp_path: Path) -> Path:
    with model.context(2048, store=Disk(tmp_path / "pack", "q4_0", "q4_0")) as context:
        context.prefill(ids_of(model, 1030))
    return tmp_path / "pack"


def test_a_pack_keeps_what_its_keys_lack(
    model: Model, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another machine or version would measure another mean; so do its copies."""
    means = mean_keys(model.info)
    monkeypatch.setattr("kvarn.runtime.store.disk.factory.mean_keys", lambda *_: 2 * means)
    export_pack(pack, tmp_path / "one.file")
    import_pack(tmp_path / "one.file", tmp_path / "copy")
    for store in (
        Disk(pack, read_only=True),
        Disk(tmp_path / "copy", read_only=True),
        Disk(tmp_path / "child", parent=pack),
    ):
        context = model.context(2048, store=store)
        np.testing.assert_array_equal(context.store.centre, means)
    assert verify(tmp_path / "copy") == []


def test_damage_of_it_is_found(model: Model, pack: Path) -> None:
    file = pack / "centre"
    whole = file.read_bytes()
    for wrong in (whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b""):
        file.write_bytes(wrong)
        (line,) = verify(pack)
        assert "centre" in line
        with pytest.raises(PackError, match="centre"):
            model.context(2048, store=Disk(pack))
    file.unlink()
    with pytest.raises(PackError, match="its file centre is missing"):
        model.context(2048, store=Disk(pack, read_only=True))


def test_a_making_that_was_cut_off_is_made_again(model: Model, pack: Path) -> None:
    """The file is there before `pack.json` is, which makes the folder a pack."""
    for name in (".centre.0123456789abcdef.part", "centre"):
        (pack / name).write_bytes(b"half")
        for file in pack.iterdir():
            if file.name not in (name, "lock"):
                file.unlink()
        context = model.context(64, store=Disk(pack, "q4_0", "q4_0"))
        np.testing.assert_array_equal(context.store.centre, mean_keys(model.info))
        context.close()


@pytest.mark.parametrize(
    "keep", [kvarn.Streaming(200), kvarn.HashEvict(200)], ids=lambda keep: keep.name
)
def test_older_snapshots_go_on_without_it(
    model: Model, keep: kvarn.HashEvict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, before = Disk(tmp_path / "old", "q4_0", "q4_0"), factory.has_centre
    monkeypatch.setattr(factory, "has_centre", lambda *_: False)
    with model.context(N, keep=keep, store=store) as context:
        context.prefill(ids_of(model, 400))
    monkeypatch.setattr(factory, "has_centre", before)
    memory = model.context(N, keep=keep, store=Ram("q4_0", "q4_0", centred=False))
    memory.prefill(ids_of(model, 400))
    with model.context(N, keep=keep, store=store) as context:
        assert context.store.centre is None
        np.testing.assert_array_equal(
            context.prefill(ids_of(model, N)[400:]), memory.prefill(ids_of(model, N)[400:])
        )
