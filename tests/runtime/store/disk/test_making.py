"""How a pack is made, beside other processes that make it, and what its manifest may hold."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvarn.runtime.store.base import SlotPlan
from kvarn.runtime.store.disk import contents
from kvarn.runtime.store.disk.contents import LOCK, create, take_lock
from kvarn.runtime.store.disk.errors import PackBusy, PackDamaged, PackError
from kvarn.runtime.store.disk.format import manifest
from kvarn.runtime.store.disk.format.manifest import FORMAT, Manifest

from .packs import FACTS


def test_a_pack_that_another_process_has_made_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was there at first, or came before the lock was taken."""
    first, second = (Manifest(FACTS, "f16", "f16", False) for _ in range(2))
    create(tmp_path / "there", first)
    known = contents.make_folder

    def make_folder(path: Path) -> list[Path]:
        monkeypatch.undo()
        create(path, first)
        return known(path)

    with pytest.raises(PackBusy):
        create(tmp_path / "there", second)
    monkeypatch.setattr(contents, "make_folder", make_folder)
    with pytest.raises(PackBusy):
        create(tmp_path / "since", second)
    assert [Manifest.read(tmp_path / name).id for name in ("there", "since")] == [first.id] * 2


def test_a_lock_that_another_has_leaves_no_file_open(tmp_path: Path) -> None:
    create(tmp_path / "pack", Manifest(FACTS, "f16", "f16", False))
    name = str((tmp_path / "pack" / LOCK).resolve())

    def n_open() -> int:
        links = (os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir())
        return sum(link == name for link in links)

    lock = take_lock(tmp_path / "pack")
    with pytest.raises(PackBusy):
        take_lock(tmp_path / "pack")
    assert n_open() == 1
    os.close(lock)


def with_format(path: Path, form: Any) -> Path:
    """A sound pack, but for the number of its format."""
    create(path, Manifest(FACTS, "f16", "f16", False))
    data = json.loads((path / manifest.NAME).read_text()) | {"format": form}
    data["check"] = manifest._check(data)
    (path / manifest.NAME).write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("form", [0, -1, 1.5, "10", None, [10]])
def test_a_format_that_is_no_number_from_1_is_damage(form: Any, tmp_path: Path) -> None:
    with pytest.raises(PackDamaged, match=r"pack\.json is not one that kvarn writes"):
        Manifest.read(with_format(tmp_path / "pack", form))


def test_formats_up_to_this_one_are_read_and_newer_ones_refused(tmp_path: Path) -> None:
    for form in (1, FORMAT):
        assert Manifest.read(with_format(tmp_path / str(form), form)).model == FACTS
    with pytest.raises(PackError, match=f"has format {FORMAT + 1}, .* install a newer kvarn"):
        Manifest.read(with_format(tmp_path / "newer", FORMAT + 1))


def test_what_a_pack_does_not_have_is_not_written() -> None:
    plain = Manifest(FACTS, "f16", "f16", False)
    data = json.loads(plain.encode())
    assert [*data] == ["format", "id", "model", "kv", "rope", "parent", "goal", "check"]
    assert not {"heads", "adapters"} & data["model"].keys() and "centre" not in data["kv"]
    for whole, more in (((), {}), ((1,), {"whole": [1]})):
        slots = replace(plain, slots=SlotPlan("sinks", (64, 64), whole))
        expected = {"keep": "sinks", "sizes": [64, 64], **more}
        assert json.loads(slots.encode())["slots"] == expected


def test_a_model_is_the_same_under_another_name_and_tokenizer() -> None:
    assert FACTS.same_model(replace(FACTS, name="other", path="b.gguf", tokenizer="00"))
    for change in ({"fingerprint": "00"}, {"n_embd": 9}, {"heads": ((1, 16), (1, 16))}):
        assert not FACTS.same_model(replace(FACTS, **change))
