"""Building libkvarn: what is missing is told in one line."""

import sys
from pathlib import Path

import pytest

from kvarn.runtime.capi import build as building
from kvarn.runtime.capi.__main__ import main
from kvarn.system.errors import KvarnError


def test_what_is_missing_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    known = building.sysconfig.get_config_var
    with monkeypatch.context() as patch:
        patch.setattr(
            building.sysconfig,
            "get_config_var",
            lambda n: 0 if n == "Py_ENABLE_SHARED" else known(n),
        )
        with pytest.raises(KvarnError, match=r"has no shared library.*--enable-shared"):
            building.build(Path("/nowhere"))
    with monkeypatch.context() as patch:
        patch.setattr(building.sys, "platform", "plan9")
        with pytest.raises(KvarnError, match="this is plan9"):
            building.build(Path("/nowhere"))


@pytest.mark.parametrize(("named", "what"), [
    ("/nowhere/cc", "the C compiler /nowhere/cc cannot be started"),
    ("false", "false failed"),
])  # fmt: skip
def test_a_failing_compiler_is_told(
    named: str, what: str, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", named)
    with pytest.raises(KvarnError, match=what):
        building.build(tmp_path)


def test_flags_are_those_of_a_library_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From whatever folder: absolute, and of a checkout where none is named."""
    checkout, elsewhere = tmp_path / "checkout", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(building, "HERE", checkout / "runtime" / "capi")
    monkeypatch.chdir(elsewhere)

    def printed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["capi", "--cflags", *words])
        return (main(), *capsys.readouterr())

    code, out, err = printed()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"no libkvarn in {elsewhere}/build/libkvarn or {checkout}/build/libkvarn: name" in err
    for folder, words in (
        (checkout / "build/libkvarn", ()),
        (tmp_path / "own", ("--out", "../own")),
        (elsewhere / "build/libkvarn", ()),
    ):
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / "libkvarn.so").touch()
        assert printed(*words) == (0, f"-I{folder}/include\n", "")
    assert printed("--out", "none")[0] == 1


def test_flags_and_pkg_config_name_the_folder(
    built: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for flag in ("--cflags", "--libs"):
        monkeypatch.setattr(sys, "argv", ["capi", flag, "--out", str(built)])
        assert main() == 0
    flags = f"-I{built}/include\n-L{built}/lib -lkvarn -Wl,-rpath,{built}/lib\n"
    assert capsys.readouterr().out == flags
    assert "prefix=${pcfiledir}/../.." in (built / "lib/pkgconfig/kvarn.pc").read_text()
    assert {p.name for p in (built / "share/examples").iterdir()} == {"ask.c", "desktop", "hello.c"}
