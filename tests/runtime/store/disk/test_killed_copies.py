"""Export and import, killed anywhere: the copy is whole or not there, and what was copied stays."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kvarn.runtime.packs.pack import all_packs
from kvarn.runtime.store.disk.archive import export_pack, import_pack

from .lives import live
from .packs import holds, random_tokens, write

TOKENS = random_tokens(2600)
FEW, MANY = 10, 150

COPIES = textwrap.dedent(
    """
    import sys
    from functools import partial
    from pathlib import Path
    from kvarn.runtime.store.disk.archive import export_pack, import_pack
    from tests.runtime.store.disk.lives import calls_of, tell_killed

    copy = {"export": export_pack, "import": import_pack}[sys.argv[1]]
    source, folder = map(Path, sys.argv[2:4])
    calls = calls_of(partial(copy, source, folder / "clean"))
    for number, share in enumerate(map(float, sys.argv[4:])):
        tell_killed(partial(copy, source, folder / str(number)), 1 + int(share * calls))
    """
)


@pytest.fixture
def full(pack: Path) -> Path:
    """A pack of two full segments, the beginning of a third, and a column."""
    write(pack, TOKENS)
    return pack


def killed(kind: str, source: Path, folder: Path, lives: int, seed: int) -> None:
    """Copy `source` to folder/0, folder/1, … in as many lives, each killed at a random call."""
    folder.mkdir()
    live(COPIES, kind, source, folder, lives=lives, seed=seed)


def exports(full: Path, folder: Path, lives: int, seed: int) -> None:
    killed("export", full, folder, lives, seed)
    for number in range(lives):
        target = folder / str(number)
        if not target.exists():
            export_pack(full, target)  # over what the killed one left
        import_pack(target, folder / f"pack-{number}")
        assert holds(folder / f"pack-{number}", TOKENS)
        assert not list(folder.glob(f".{number}.*"))
    assert holds(full, TOKENS)


def imports(full: Path, folder: Path, lives: int, seed: int) -> None:
    export_pack(full, full.with_name("exported"))
    killed("import", full.with_name("exported"), folder, lives, seed)
    for number in range(lives):
        if not (folder / str(number)).exists():
            import_pack(full.with_name("exported"), folder / str(number))
        assert holds(folder / str(number), TOKENS)


@pytest.mark.parametrize("copies", [exports, imports])
def test_a_killed_copy_is_whole_or_not_there(full: Path, tmp_path: Path, copies) -> None:  # type: ignore[no-untyped-def]
    copies(full, tmp_path / "copies", FEW, 0)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [exports, imports])
def test_many_killed_copies(full: Path, tmp_path: Path, copies) -> None:  # type: ignore[no-untyped-def]
    copies(full, tmp_path / "copies", MANY, 1000)


def test_what_a_killed_import_leaves_is_no_pack(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "packs"
    folder.parent.mkdir()
    export_pack(full, tmp_path / "exported")
    killed("import", tmp_path / "exported", folder, FEW, 7)
    named = {path.name for path in all_packs()}
    assert named <= {"clean", *map(str, range(FEW))}
    assert all(holds(path, TOKENS) for path in all_packs())
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("alive", [True, False])
def test_what_is_left_of_an_import_goes_once_its_process_is_gone(
    full: Path, tmp_path: Path, alive: bool
) -> None:
    folder, exported = tmp_path / "packs", tmp_path / "exported"
    export_pack(full, exported)
    code = """
import sys
from pathlib import Path
from kvarn.runtime.store.disk.archive import importing as archive
def unpack(*_):
    print(flush=True)
    sys.stdin.read()
archive.unpack = unpack
archive.import_pack(*map(Path, sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, str(exported), str(folder / "slow")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it is in the middle of its import
        if not alive:
            other.kill()
            other.wait()
        import_pack(exported, folder / "quick")
        left = [path.name for path in folder.iterdir() if path.name.startswith(".importing-")]
        other.kill()
    assert len(left) == alive
    assert holds(folder / "quick", TOKENS)
