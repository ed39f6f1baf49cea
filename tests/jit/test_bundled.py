"""What an installation brings with it: CPUs, kernels."""

import json
import os
import shutil
from pathlib import Path

import pytest
from llvmlite import binding as llvm

from kvarn.jit import bundled, kernel_cache, machine, variant
from kvarn.jit.kernel_cache import files, folders
from kvarn.runtime.capi.bundle import kernels
from kvarn.system.trust import Untrusted

HAVING = frozenset({"avx", "avx2", "fma"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    monkeypatch.setattr(variant, "host_features", lambda: HAVING)
    for name in variant.CHOSEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("KVARN_SIMD", raising=False)
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


@pytest.mark.parametrize(("forced", "expected"), [("avx2", "v3"), ("avx512", "v4")])
def test_a_variant_that_the_user_asks_for_has_its_kernels(
    forced: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = ",".join(f"+{name}" for name in sorted(variant.NEEDS["avx512"] | {"avx2"}))
    (folder / "targets.json").write_text(json.dumps([["v4", wide], ["v3", "+avx2"]]))
    monkeypatch.setattr(variant, "host_features", lambda: variant.NEEDS["avx512"] | HAVING)
    monkeypatch.setenv("KVARN_SIMD", forced)
    assert variant.target()[0] == expected


@pytest.mark.parametrize("text", ["", "{", "[[1, 2, 3]]", "7", '{"a": 1}'])
def test_a_damaged_list_of_cpus_is_told(text: str, folder: Path) -> None:
    assert not bundled.is_damaged() and not folders.why_not_bundled()
    (folder / "targets.json").write_text(text)
    assert bundled.targets() == [] and bundled.is_damaged()
    assert folders.why_not_bundled().endswith("targets.json is damaged: install kvarn again")


def test_an_older_cpu_is_told_what_it_lacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "targets.json").write_text(json.dumps([["v3", "+avx2,+bmi"]]))
    monkeypatch.setattr(folders, "host_features", lambda: HAVING)
    assert folders.why_not_bundled() == "this CPU has no bmi"
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")  # the user's own choice
    assert folders.why_not_bundled() == ""


def test_linux_lists_the_features_that_llvm_sees() -> None:
    seen = llvm.get_host_cpu_features()
    listed = machine.features()
    if not listed:
        pytest.skip("not Linux on x86")
    wanted = {name for target in kernels.targets() for name in target.needs}
    # Not among them: features that LLVM names and no list of Linux has.
    assert {name for name in wanted if name in listed} == {
        name for name in wanted if seen.get(name)
    }


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose folder `bundled` has this process's kernels."""
    package = tmp_path / "package"
    monkeypatch.setattr(bundled, "FOLDER", package / "bundled")
    (package / "bundled" / "kernels" / folders.bundled_key()).mkdir(parents=True)
    return package


def test_kernels_are_read_where_nobody_else_can_write(package: Path) -> None:
    place = package / "bundled" / "kernels" / folders.bundled_key()
    (place / "probe").write_bytes(b"code")
    with folders.open_bundled() as opened:
        assert opened.read("probe") == b"code"
    for path in (place, place.parent):
        for mode in (0o777, 0o775):
            path.chmod(mode)
            with pytest.raises(Untrusted):
                folders.open_bundled()
        path.chmod(0o755)
    (place / "probe").chmod(0o664)
    with folders.open_bundled() as opened, pytest.raises(Untrusted):
        opened.read("probe")
    place.rename(package / "elsewhere")
    place.symlink_to(package / "elsewhere")
    assert folders.open_bundled() is None


def test_who_can_write_to_the_package_may_have_written_its_kernels(package: Path) -> None:
    """A umask of 002 leaves all that pip installs to the user's own group."""
    place = package / "bundled" / "kernels" / folders.bundled_key()
    (place / "probe").write_bytes(b"code")
    for path in (package, place.parents[1], place.parent, place):
        path.chmod(0o775)
    (place / "probe").chmod(0o664)
    with folders.open_bundled() as opened:
        assert opened.read("probe") == b"code"
        (place / "probe").chmod(0o666)
        with pytest.raises(Untrusted):
            opened.read("probe")
    place.chmod(0o777)
    with pytest.raises(Untrusted):
        folders.open_bundled()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make what others own")
def test_another_group_or_user_may_not_have(package: Path) -> None:
    place = package / "bundled" / "kernels" / folders.bundled_key()
    package.chmod(0o775)
    place.chmod(0o775)
    os.chown(place, -1, 54_321)
    with pytest.raises(Untrusted):
        folders.open_bundled()
    os.chown(place, 54_321, 0)
    with pytest.raises(Untrusted):
        folders.open_bundled()
    os.chown(package, 54_321, 0)  # whose modules run here all the same
    with folders.open_bundled():
        pass


def test_only_machine_code_that_was_used_is_bundled(
    package: Path, places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places(tmp_path / "cache")
    monkeypatch.setattr(files.Counts, "names", set())
    files.keep("earlier-1.code", b"earlier")
    files.Counts.names.clear()
    for name in ("rows-1.code", "sources-1.digests", "rows-1.kernel", "rehearsed-1.names"):
        files.keep(name, name.encode())
    shutil.rmtree(package / "bundled")
    kernel_cache.bundle(package / "bundled")
    place = package / "bundled" / "kernels" / folders.bundled_key()
    assert {file.name for file in place.iterdir()} == {"rows-1.code", "sources-1.digests"}
    places(tmp_path / "empty")
    assert files.find("rows-1.code", bytes) == b"rows-1.code"
