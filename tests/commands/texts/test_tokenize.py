"""`kvarn tokenize`: ids and pieces of arguments or standard input, in every form of output."""

from __future__ import annotations

import io
import json
from pathlib import Path

import gguf
import pytest

from kvarn.cli import main
from kvarn.commands.texts.tokenize import visible
from kvarn.runtime.loading import default_model

from ...models.tiny_models import finish

TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "▁a", "é"]
FIRST_BYTE, SPACE, A, SPACE_A, E_ACUTE = 3, 259, 260, 261, 262


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece vocabulary of bytes and four pieces."""
    path = tmp_path_factory.mktemp("tokenize") / "vocab.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 4])
    finish(writer)
    return path


def ran(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["tokenize", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_one_token_per_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = ran(capsys, "-m", path, "--bos", "aé\n")
    expected = [(1, "<s>"), (SPACE_A, " a"), (E_ACUTE, "é"), (FIRST_BYTE + 10, "\\n")]
    assert shown == "".join(f"{token}\t{piece}\n" for token, piece in expected)


def test_ids_json_and_count(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [SPACE_A, SPACE_A]
    assert ran(capsys, "-m", path, "--ids", "a", "a") == f"{SPACE_A} {SPACE_A}\n"
    assert json.loads(ran(capsys, "-m", path, "--json", "a", "a")) == ids
    assert ran(capsys, "-m", path, "--count", "a", "a") == "2\n"
    assert ran(capsys, "-m", path, "--ids", "") == "\n"


def test_special_tokens_where_asked(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "-m", path, "--ids", "--special", "a</s>") == f"{SPACE_A} 2\n"
    assert "\t</s>" not in ran(capsys, "-m", path, "a</s>")


def test_standard_input_may_be_any_bytes(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\r\n")))
    pieces = [line.split("\t")[1] for line in ran(capsys, "-m", path).splitlines()]
    assert pieces == [" a", "\\xff", "\\r", "\\n"]


def test_a_file_is_read(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("a a")
    assert ran(capsys, "-m", path, "--count", "-f", tmp_path / "text") == "2\n"
    (tmp_path / "b").write_text("é\n")
    both = ran(capsys, "-m", path, "--ids", "-f", tmp_path / "text", "-f", tmp_path / "b")
    assert both == ran(capsys, "-m", path, "--ids", "==> text <==\na a\n==> b <==\né\n")


def test_the_default_model(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "default_model_path", lambda: path)
    assert ran(capsys, "--ids", "a") == f"{SPACE_A}\n"


@pytest.mark.parametrize(
    ("piece", "shown"),
    [(b" a\\", " a\\\\"), (b"\t\x00\x7f", "\\t\\x00\\x7f"), (b"\xe4\xbd", "\\xe4\\xbd")],
)
def test_visible_pieces(piece: bytes, shown: str) -> None:
    assert visible(piece) == shown


def test_errors_are_one_line(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenize", "-m", str(tmp_path / "none.gguf"), "a"]) == 1
    bare = tmp_path / "bare.gguf"
    writer = gguf.GGUFWriter(bare, "llama")
    finish(writer)
    assert main(["tokenize", "-m", str(bare), "a"]) == 1
    assert main(["tokenize", "-m", str(path), "-f", "-", "-f", "-"]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "none.gguf" in first and "no tokenizer" in second
    assert "standard input (-) is named more than once" in third
