"""What an installation brings with it: CPUs, kernels."""

import json
from pathlib import Path

import pytest

from kvarn.jit import bundled, variant
from kvarn.jit.kernel_cache import folders
from kvarn.system.trust import Untrusted

HAVING = frozenset({"avx", "avx2", "fma"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    monkeypatch.setattr(variant, "host_features", lambda: HAVING)
    for name in variant._CHOSEN:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(("targets", "expected"), [
    ([["v4", "+avx2,+avx512f"], ["v3", "+avx,+avx2"]], ("v3", "+avx,+avx2")),
    ([["v3", "+avx,+avx2"], ["v2", "+avx"]], ("v3", "+avx,+avx2")),
    ([["v4", "+avx512f"]], None),
    ([], None),
])  # fmt: skip
def test_the_best_cpu_that_this_one_can_stand_for_is_taken(
    targets: list[list[str]], expected: tuple[str, str] | None, folder: Path
) -> None:
    default = variant.target()
    (folder / "targets.json").write_text(json.dumps(targets))
    assert variant.target() == (expected or default)


def test_the_environment_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "targets.json").write_text(json.dumps([["v3", "+avx2"]]))
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert variant.target() == ("generic", "")


def test_kernels_are_read_where_nobody_else_can_write(folder: Path) -> None:
    assert folders.open_bundled() is None
    place = folder / "kernels" / folders.key()
    place.mkdir(parents=True)
    (place / "probe").write_bytes(b"code")
    with folders.open_bundled() as found:
        assert found.read("probe") == b"code"
    place.chmod(0o777)
    with pytest.raises(Untrusted):
        folders.open_bundled()
