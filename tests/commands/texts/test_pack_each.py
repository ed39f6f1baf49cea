"""`kvarn pack build --each`: a folder of files becomes a folder of packs."""

import json
import os
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from kvarn.runtime.packs import texts as building

from ..pack_runner import Kvarn


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "texts" / "more").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name, text in (("a.txt", "The mill stood."), ("more/b.md", "The wheel turned. " * 80)):
        (tmp_path / "texts" / name).write_text(text)
    return tmp_path / "texts"


def n_tokens(run: Kvarn, pack: str) -> int:
    return json.loads(run("pack", "info", pack, "--json")[1])["n_tokens"]


def test_each_file_of_a_folder_gets_a_pack(run: Kvarn, texts: Path) -> None:
    words = ("pack", "build", "--each", *run.model, "-f", str(texts), "-o", "./library/")
    code, out, err = run(*words)
    assert (code, out) == (0, "")
    assert "1 of 2: library/a: 16 tokens" in err and "16 of them read" in err
    assert "./library/: 2 of 2 files have a pack" in err
    assert (n_tokens(run, "library/a"), n_tokens(run, "library/b")) == (16, 1441)
    assert run(*words)[2].count(" 0 of them read") == 2
    (texts / "c.txt").write_bytes(b"\x8d\x80")
    code, _, err = run(*words, "--method", "hash")
    assert code == 1
    assert "c.txt is not UTF-8 text" in err
    assert "./library/: 2 of 3 files have a pack" in err
    assert "hash" in run("pack", "info", "library/b")[1]


def test_a_text_that_was_moved_is_not_read_again(run: Kvarn, texts: Path) -> None:
    words = ("pack", "build", "--each", *run.model, "-o", "./library/", "-f", "texts")
    assert run(*words)[0] == 0
    listed = run("pack", "ls", "library", "--json")[1]
    (texts / "more" / "b.md").rename(texts / "moved.txt")
    code, _, err = run(*words)
    assert code == 0 and "moved.txt has the text of library/b, which was read before" in err
    assert "2 of 2 files have a pack" in err
    assert run("pack", "ls", "library", "--json")[1] == listed
    blocks = run(*words[:-4], "-o", "./blocks/", "-f", "texts", "--prefill", "blocks:512")[2]
    assert "(prefill: blocks:512" in blocks.splitlines()[-2]  # of the last text
    other = run(*words, "--kv-type", "q8_0")  # is read anew, as the line says
    assert other[0] == 1 and "library/moved: 1,441 tokens" in other[2]
    (texts / "copy.txt").write_text((texts / "a.txt").read_text() + "!")
    assert "library/copy: 17 tokens" in run(*words)[2]


def test_a_library_that_cannot_be_written_is_looked_through(
    run: Kvarn, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("pack", "build", "--each", *run.model, "-o", "./library/", "-f", "texts")
    assert run(*words)[0] == 0
    (texts / "a.txt").write_text("The mill fell.")
    (texts / "new.txt").write_text("The wheel stood.")
    library = texts.parent / "library"
    (texts / "more" / "b.md").rename(texts / "renamed.txt")
    before = {path: path.stat().st_mtime_ns for path in library.rglob("*")}
    monkeypatch.setattr(building, "_is_read_only", lambda folder: True)
    code, _, err = run(*words)
    assert code == 1 and "1 of 3 files have a pack" in err
    assert "renamed.txt has the text of library/b, which was read before" in err
    assert "of another text" in err
    assert "new.txt: no pack holds this text, and library cannot be written" in err
    assert {path: path.stat().st_mtime_ns for path in library.rglob("*")} == before


def test_a_folder_of_packs_is_asked_pack_by_pack(
    run: Kvarn, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("pack", "build", "--each", *run.model, "-f", "texts", "-o", "./library/")[0] == 0
    (texts.parent / "library" / "notes").mkdir()  # no pack
    asked = ("-n", "4", "Who?")
    expected = run("ask", "library/a", "library/b", *asked)
    assert expected[0] == 0 and expected[1].startswith("library/a:\n")
    for word in ("./library/", "library/", "./library"):
        assert run("ask", word, *asked)[:2] == expected[:2]
    monkeypatch.chdir(texts.parent / "library")
    here = expected[1].replace("library/", "./")
    assert run("ask", "./", *asked)[:2] == (0, here)


@pytest.mark.parametrize(
    ("files", "output", "message"),
    [
        (["texts"], "library", "-o is a folder for many packs, found the name library"),
        (["-"], "./library", "a text from stdin has no name"),
        (["x/t/a.md", "y/t/a.md"], "./library", "x/t/a.md and y/t/a.md have the same pack"),
        (["texts", "gone.txt"], "./library", "gone.txt: no such file or folder"),
        (["empty"], "./library", "no files: the folders are empty"),
    ],
)
def test_wrong_lines_are_refused_before_a_model_is_read(
    run: Kvarn, texts: Path, files: list[str], output: str, message: str
) -> None:
    (texts.parent / "empty").mkdir()
    for folder in ("x/t", "y/t"):
        (texts.parent / folder).mkdir(parents=True)
        (texts.parent / folder / "a.md").write_text("Another one.")
    words = ("pack", "build", "--each", "-m", "gone.gguf", "-f", *files, "-o", output)
    code, out, err = run(*words)
    is_usage = output == "library" or files == ["-"]
    assert (code, out, err.count("\n")) == (2 if is_usage else 1, "", 1)
    assert message in err
    assert not (texts.parent / "library").exists()


def test_more_files_join_packs_of_any_type_by_their_model(run: Kvarn, texts: Path) -> None:
    words = ("pack", "build", "--each", "-o", "./library/", "-f")
    assert run(*words, str(texts / "a.txt"), *run.model, "--kv-type", "q8_0")[0] == 0
    code, _, err = run(*words, str(texts))
    assert code == 0 and "using the model of the pack" in err
    assert [run("pack", "info", f"library/{name}")[1].count("q8_0") for name in "ab"] == [1, 0]


def test_files_of_one_name_are_told_apart_by_folder_and_ending(run: Kvarn, texts: Path) -> None:
    for name in ("more/a.md", "more/a.txt", "c.txt"):
        (texts / name).write_text("" if name == "c.txt" else f"Another {name}.")
    code, _, err = run("pack", "build", "--each", *run.model, "-f", str(texts), "-o", "./library/")
    made = sorted(path.name for path in (texts.parent / "library").glob("[!.]*"))
    assert made == ["b", "more-a.md", "more-a.txt", "texts-a.txt"]
    assert code == 1 and f"{texts / 'c.txt'}: nothing to read: the text is empty" in err


def test_packs_are_read_and_stored_as_the_line_says(run: Kvarn, texts: Path) -> None:
    files = ("-f", str(texts / "more"), "-o", "./library/")
    how = ("--kv-type", "q8_0", "--prefill", "sparse")
    code, _, err = run("pack", "build", "--each", *run.model, *files, *how)
    assert code == 0, err
    info = json.loads(run("pack", "info", "library/b", "--json")[1])
    assert info["kv"] == "q8_0"
    assert info["prefill"].startswith("sparse")


def test_a_file_that_cannot_be_read_any_more_stops_no_other(
    run: Kvarn, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = building.read_document

    def refuse(file: Path, **options: object) -> str:
        if file.name == "a.txt":
            raise PermissionError(13, "Permission denied", str(file))
        return read(file, **options)

    monkeypatch.setattr(building, "read_document", refuse)
    code, _, err = run("pack", "build", "--each", *run.model, "-f", str(texts), "-o", "./library/")
    assert code == 1 and "a.txt: Permission denied" in err
    assert "./library/: 1 of 2 files have a pack" in err
    assert n_tokens(run, "library/b") == 1441


def test_a_folder_of_packs_is_listed(run: Kvarn, texts: Path) -> None:
    (texts / "c.txt").write_bytes(b"\x8d\x80")
    line = ("pack", "build", "--each", *run.model, "-f", str(texts), "-o", "./library/")
    assert [run(*line)[0] for _ in range(2)] == [1, 1]
    code, out, err = run("pack", "ls", "library")
    assert (code, err) == (0, "")
    head, a, b, c = (row.split(maxsplit=3) for row in out.splitlines())
    assert head == ["name", "state", "tokens", "text"]
    assert a == ["a", "read", "16", str(texts / "a.txt")]
    assert b[:3] == ["b", "read", "1,441"]
    assert c[:3] == ["c", "failed,", "2"]
    assert c[3].startswith("attempts") and "c.txt is not UTF-8 text" in c[3]
    told = json.loads(run("pack", "ls", "library", "--json")[1])
    assert [(one["name"], one["state"], one["n_tokens"]) for one in told] == [
        ("a", "read", 16),
        ("b", "read", 1441),
        ("c", "failed", 0),
    ]
    assert told[2]["n_failed"] == 2 and "is not UTF-8" in told[2]["reason"]
    assert "is a pack: expected a folder" in run("pack", "ls", "library/a")[2]


@pytest.mark.parametrize("end", ["\n", "\0"])
def test_files_are_named_by_a_list_too(
    run: Kvarn, texts: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `find … | kvarn …` and `find … -print0 | kvarn …` give them; a folder counts, too."""
    names = [str(texts / "a.txt"), str(texts / "more")]
    (texts.parent / "list").write_text("".join(name + end for name in names))
    words = ("pack", "build", "--each", *run.model, "-o", "./library/", "--files-from")
    assert "2 of 2 files have a pack" in run(*words, "list")[2]
    listed = TextIOWrapper(BytesIO(os.fsencode(names[0] + end)))
    monkeypatch.setattr(sys, "stdin", listed)
    assert "1 of 1 files have a pack" in run(*words, "-")[2]
    (texts.parent / "list").write_text(end)
    code, _, err = run(*words, "list")
    assert code == 1 and "--files-from list: no names in it" in err
    with pytest.raises(SystemExit):
        run("pack", "build", "-o", "x")
