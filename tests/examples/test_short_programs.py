"""The short programs of examples: they say what the same calls say, and are short."""

import io
import runpy
from pathlib import Path

import pytest

import kvarn

ROOT = Path(__file__).resolve().parents[2]
NOVEL = ROOT / "tests" / "runtime" / "golden" / "two_cities.txt"


def continued(text: str, n: int) -> str:
    context = kvarn.load().context(4096)
    return "".join(context.generate(text, max_tokens=n, sampler=kvarn.Sampler(temp=0)))


def test_a_book_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(NOVEL.read_text(encoding="utf-8"), encoding="utf-8")
    program = runpy.run_path(str(ROOT / "examples" / "ask_a_book.py"))
    answers = []
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO("It was\n"))
        program["main"](str(book))
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] and len(answers[0]) > 20


def test_a_book_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["ask_a_book.py"])
    with pytest.raises(SystemExit, match=r"^usage: .* BOOK.txt"):
        runpy.run_path(str(ROOT / "examples" / "ask_a_book.py"), run_name="__main__")


def test_methods_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "compare_methods.py"))["main"](str(NOVEL))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["full", "topk", "hash"]
    expected = continued(NOVEL.read_text(encoding="utf-8"), 20)
    assert lines[0] == f"full: {expected!r}"


def test_the_notebook_looks_into_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book, text = tmp_path / "book.txt", 12 * NOVEL.read_text(encoding="utf-8")
    book.write_text(text, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["notebook.py", str(book)])
    runpy.run_path(str(ROOT / "examples" / "notebook.py"))
    first, *likely = capsys.readouterr().out.splitlines()
    n_tokens = int(first.split()[0].replace(",", ""))
    assert 8000 < n_tokens < 9000 and first.endswith(f" tokens of {len(text):,} characters")
    assert likely[0].split()[0] >= likely[1].split()[0]
    layers = [line for line in likely if line.startswith("layer ")]
    shares = [float(line.split()[2].rstrip("%")) for line in layers]
    assert shares and all(1 < share < 20 for share in shares)


def test_they_are_short() -> None:
    programs = [path for path in (ROOT / "examples").glob("*.py") if path.name != "minimal.py"]
    assert programs and all(len(p.read_text("utf-8").splitlines()) <= 40 for p in programs)
