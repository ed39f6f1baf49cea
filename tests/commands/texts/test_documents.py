"""Commands read documents: what `-f` names is read as its text alone would be."""

import re
import shutil
from pathlib import Path

import pytest

from kvarn.commands.measuring.eval import _filler
from kvarn.runtime.model import Model

from ...runtime.documents import made
from ..pack_runner import TEXT, Kvarn, ids_of

ASK = ("-n", "6", "--temp", "0")
LINE = "The mill stood by the river."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("mammoth", reason="the extra docs is not installed")
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "a.docx").write_bytes(made.word(LINE))
    (folder / "b.txt").write_text("Who?\n")
    (tmp_path / "same.txt").write_text(f"{LINE}\n")
    (tmp_path / "both.txt").write_text(
        f"==> papers/a.docx <==\n{LINE}\n\n==> papers/b.txt <==\nWho?\n"
    )
    return folder


def test_run_reads_documents_as_their_texts(run: Kvarn, folder: Path, tmp_path: Path) -> None:
    run("run", *run.model, "-f", str(tmp_path / "both.txt"), *ASK)  # where kernels are missing
    for named, text in ((folder / "a.docx", "same.txt"), (folder, "both.txt")):
        answer = run("run", *run.model, "-f", str(named), *ASK)
        assert answer[0] == 0 and answer == run("run", *run.model, "-f", str(tmp_path / text), *ASK)
    shutil.copy(folder / "b.txt", tmp_path)
    files = ["-f", str(folder / "a.docx"), "-f", str(tmp_path / "b.txt")]
    both = (tmp_path / "both.txt").read_text().replace("papers/", "")
    assert run("run", *run.model, *files, *ASK) == run("run", *run.model, "-p", both[:-1], *ASK)


def test_tokens_and_hay_are_those_of_their_texts(run: Kvarn, folder: Path, tmp_path: Path) -> None:
    document, text = folder / "a.docx", tmp_path / "same.txt"
    tokens = run("tokenize", *run.model, "-f", str(document))
    assert tokens[0] == 0 and tokens == run("tokenize", *run.model, "-f", str(text))
    hay, same = _filler([document]), _filler([text])
    assert hay[1] == same[1] and vars(hay[0]) == vars(same[0])


def test_a_chat_about_a_file_is_one_about_its_pack(
    run: Kvarn, tiny: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read before the conversation, as a pack is."""
    turns = folder / "turns"
    turns.write_text("Who is there?\n/stats\n")

    def chat(*begin: str) -> tuple[str, int]:
        """The answer, and the tokens in the context then."""
        with turns.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            code, out, err = run("chat", *begin, *ASK)
        assert code == 0
        return out, int(re.findall(r"messages, (\d+) of", err)[0])

    run.build("p")
    about = chat(*run.model, "-f", run.text)
    assert about == chat("--pack", "p")
    bos = int(tiny.tokenizer.add_bos)  # once, with and without the text
    assert about[1] == chat(*run.model)[1] + len(ids_of(tiny, TEXT)) - bos


def test_a_chat_begins_in_one_way(run: Kvarn, folder: Path) -> None:
    file = str(folder / "b.txt")
    for other in (["--pack", "p"], ["--session", "s"]):
        code, _, err = run("chat", *run.model, "-f", file, *other)
        assert code == 2 and f"-f and {other[0]} both say how the chat begins" in err
    keep = ["--keep", "streaming", "--keep-budget", "50%"]
    code, _, err = run("chat", *run.model, "-f", file, *keep)
    assert code == 2 and "omit --keep streaming" in err


@pytest.mark.parametrize("command", ["run", "chat", "pack build", "perplexity", "imatrix"])
def test_a_document_is_refused_before_the_model_is_looked_for(
    command: str, run: Kvarn, tmp_path: Path
) -> None:
    scan = tmp_path / "scan.pdf"
    scan.write_bytes(made.pdf(""))
    output = ["-o", "out"] if command in ("pack build", "imatrix") else []
    code, out, err = run(*command.split(), "-m", "gone.gguf", "-f", str(scan), *output)
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert f"{scan} has 1 pages and no text, as scans have" in err


def test_perplexity_is_of_one_document(run: Kvarn, folder: Path) -> None:
    code, _, err = run("perplexity", *run.model, "-f", str(folder))
    assert code == 1 and "perplexity is of one text, found 2" in err


def test_files_without_text_are_named_and_alone_refused(run: Kvarn, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "mill.txt").write_text(LINE)
    empty = ["-f", str(tmp_path / "empty.txt"), str(tmp_path / "blank.txt")]
    code, _, err = run("pack", "build", *run.model, *empty, "-o", "none")
    assert (code, err) == (1, "kvarn: nothing to read: the files are empty\n")
    code, _, err = run("run", *run.model, *empty[:2], "-f", empty[2])
    assert code == 1 and "is empty: expected a text" in err and err.count("\n") == 1
    code, _, err = run("pack", "build", *run.model, *empty, str(tmp_path / "mill.txt"), "-o", "one")
    assert code == 0 and "empty.txt is empty" in err and "blank.txt is empty" in err
