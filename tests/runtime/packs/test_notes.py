"""What became of each text of a folder of packs, also where processes die of one."""

import os
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import xxhash

import kvarn
from kvarn.runtime.model import Model
from kvarn.runtime.packs import notes
from kvarn.runtime.packs.notes import attempt, note_path, packs_in, texts_in
from kvarn.runtime.packs.pack import remove_pack
from kvarn.runtime.packs.texts import TextFile, build_packs
from kvarn.runtime.store import PackBusy, PackError
from kvarn.system.errors import KvarnError

from ...programs import killed
from ..reading import ids_of

CTX = 4096
DIES = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from kvarn.runtime.packs.notes import attempt

    with attempt(Path(sys.argv[1]), "a.pdf"):
        os.kill(os.getpid(), signal.SIGKILL)
    """
)


def die(pack: Path) -> None:
    """A process that begins to read the text, and dies of it."""
    killed(DIES, pack)


def by_name(folder: Path) -> dict[str, notes.TextState]:
    return {text.name: text for text in texts_in(folder)}


def test_the_list_is_what_the_packs_and_their_notes_say(tiny: Model, tmp_path: Path) -> None:
    file, library = tmp_path / "a.txt", tmp_path / "library"
    file.write_text("The mill stood.")
    ids = ids_of(tiny, 1100)
    gone = TextFile(tmp_path / "gone.txt")
    texts = {library / "a": TextFile(file), library / "b": ids, library / "c": gone}
    for _ in range(2):
        assert len(list(build_packs(tiny, texts, CTX))) == 3
    states = by_name(library)
    assert [*states] == ["a", "b", "c"]
    read, of_ids, failed = states.values()
    assert (read.state, read.text, read.model) == ("read", str(file), tiny.name)
    assert read.digest == xxhash.xxh3_128_hexdigest(b"The mill stood.")
    assert (of_ids.state, of_ids.text, of_ids.n_tokens, of_ids.goal) == ("read", "", 1100, 1100)
    assert (failed.state, failed.n_failed, failed.n_died) == ("failed", 2, 0)
    assert failed.reason == f"{gone.path}: no such file or folder"
    gone.path.write_text("It is here.")
    assert len(list(build_packs(tiny, texts, CTX))) == 3
    found = by_name(library)["c"]
    assert (found.state, found.n_failed, found.reason) == ("read", 0, "")
    assert packs_in(library) == [library / name for name in "abc"]


def test_a_text_of_which_processes_die_is_given_up(tiny: Model, tmp_path: Path) -> None:
    pack = tmp_path / "a"
    for n in range(1, 5):
        die(pack)
        assert texts_in(tmp_path)[0].state == ("given up" if n == 4 else "unfinished")
    (given_up,) = texts_in(tmp_path)
    assert (given_up.state, given_up.n_died, given_up.text) == ("given up", 4, "a.pdf")
    texts = {pack: ids_of(tiny, 30), tmp_path / "b": ids_of(tiny, 9)}
    ended = {one.path.name: one.pack for one in build_packs(tiny, texts, CTX)}
    assert "a.pdf was given up: 4 processes died of it" in str(ended["a"])
    assert by_name(tmp_path)["b"].state == "read"
    note_path(pack).unlink()  # as the message says
    assert [one.n_read for one in build_packs(tiny, texts, CTX)] == [30, 0]


def test_deaths_count_only_where_no_process_gets_further(tiny: Model, tmp_path: Path) -> None:
    """A machine that is taken away again and again does not make a long text a deadly one."""
    pack, ids = tmp_path / "a", ids_of(tiny, 2600)
    for n in (512, 1024, 1536, 2048, 2200):
        with tiny.context(CTX, store=kvarn.Disk(pack, goal=2600)) as context:
            context.prefill(ids[len(context.tokens) : n])
        die(pack)
        (text,) = texts_in(tmp_path)
        assert (text.state, text.n_died, text.n_tokens) == ("unfinished", 1, n)
    (ended,) = build_packs(tiny, {pack: ids}, CTX)
    assert ended.n_read == 400


@pytest.mark.parametrize(
    ("error", "n_failed", "n_died"),
    [
        (KeyboardInterrupt(), 0, 0),
        (PackBusy(Path("a")), 0, 0),
        (KvarnError("no space left"), 1, 0),
        (MemoryError(), 0, 1),
    ],
)
def test_how_an_attempt_ends_is_noted(
    error: BaseException, n_failed: int, n_died: int, tmp_path: Path
) -> None:
    pack = tmp_path / "a"
    for n in (1, 2):
        with pytest.raises(type(error)), attempt(pack, "a.txt"):
            assert texts_in(tmp_path)[0].state == "being read"
            with pytest.raises(PackBusy), attempt(pack, "a.txt"):
                pass
            raise error
        (text,) = texts_in(tmp_path)
        assert (text.n_failed, text.n_died) == (n * n_failed, n * n_died)
        assert text.reason == ("no space left" if n_failed else "")


@pytest.mark.parametrize("data", [b"", b'{"text": "a', b"[]", b'{"colour": 1}', b"\xff\n"])
def test_what_a_crash_leaves_of_a_note_is_no_note(data: bytes, tmp_path: Path) -> None:
    pack = tmp_path / "a"
    note_path(pack).parent.mkdir()
    note_path(pack).write_bytes(data)
    assert texts_in(tmp_path)[0].state == "unfinished"
    with attempt(pack, "a.txt"):
        pass
    assert texts_in(tmp_path)[0].text == "a.txt"


def test_a_note_that_was_removed_meanwhile_holds_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = notes.fcntl.flock

    def late(fd: int, how: int) -> None:
        lock(fd, how)
        note_path(tmp_path / "a").unlink()

    monkeypatch.setattr(notes.fcntl, "flock", late)
    with pytest.raises(PackBusy), attempt(tmp_path / "a", "a.txt"):
        pass


def test_what_is_no_folder_of_packs_is_told(tiny: Model, tmp_path: Path) -> None:
    list(build_packs(tiny, {tmp_path / "library" / "a": ids_of(tiny, 9)}, CTX))
    (tmp_path / "empty").mkdir()
    for name, told in (
        ("gone", "is no folder"),
        ("library/a", "is a pack"),
        ("empty", "there are no packs in"),
    ):
        for listing in (packs_in, texts_in):
            with pytest.raises(KvarnError, match=told):
                listing(tmp_path / name)


def test_a_note_that_is_no_file_is_told_of_its_pack(tmp_path: Path) -> None:
    note_path(tmp_path / "a").mkdir(parents=True)
    with pytest.raises(PackError, match="not a regular file"):
        texts_in(tmp_path)


def test_a_pack_that_is_removed_takes_its_note_along(tiny: Model, tmp_path: Path) -> None:
    list(build_packs(tiny, {tmp_path / name: ids_of(tiny, 9) for name in "ab"}, CTX))
    remove_pack(tmp_path / "a")
    assert [text.name for text in texts_in(tmp_path)] == ["b"]


def test_on_a_full_disk_the_first_error_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(pack: Path, fd: int, note: notes.TextNote) -> None:
        raise PackError(pack, "no space for the note")

    with pytest.raises(KvarnError, match="no space for the text"), attempt(tmp_path / "a", "a"):
        monkeypatch.setattr(notes, "_write", full)
        raise KvarnError("no space for the text")


def test_a_note_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the system takes a few bytes at a time."""

    def short(fd: int, data: bytes, offset: int) -> int:
        return os.pwrite(fd, data[:7], offset)

    monkeypatch.setattr(notes, "os", SimpleNamespace(**{**vars(os), "pwrite": short}))
    with pytest.raises(KvarnError), attempt(tmp_path / "a", "a.txt"):
        raise KvarnError("no text in it")
    (text,) = texts_in(tmp_path)
    assert (text.text, text.reason) == ("a.txt", "no text in it")
