"""`kvarn pack build --each-block`: the blocks of one text, by several processes at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvarn.runtime.context.reading import reading

from ..pack_runner import Kvarn

BLOCKS = ("--prefill", "blocks:1024")


@pytest.fixture
def text(run: Kvarn) -> str:
    """The file of some 3,500 tokens."""
    Path(run.text).write_text("The mill stood by the river, and the wheel turned all day. " * 60)
    return run.text


def contents(pack: Path) -> dict[str, bytes]:
    """The log, K and V, indexes and the open segment of a pack."""
    others = ("pack.json", "commits", "lock")
    return {file.name: file.read_bytes() for file in pack.iterdir() if file.name not in others}


def test_commands_read_the_blocks_of_a_text_together(run: Kvarn, text: str, tmp_path: Path) -> None:
    run.build(f"{tmp_path}/one", *BLOCKS, "--method", "topk")
    words = ("pack", "build", *run.model, "-f", text, "-o", f"{tmp_path}/both", *BLOCKS)
    code = [sys.executable, "-m", "kvarn", *words, "--each-block", "--method", "topk"]
    both = [subprocess.Popen(code, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    info = json.loads(run("pack", "info", f"{tmp_path}/both", "--json")[1])
    counts = [int(lines.split(" of them read")[0].split()[-1].replace(",", "")) for lines in told]
    assert sum(counts) == info["n_tokens"] > 3000
    assert contents(tmp_path / "both") == contents(tmp_path / "one")
    assert run("pack", "verify", f"{tmp_path}/both")[0] == 0


def test_the_rest_is_read_sparse_after_its_index_is_made(
    run: Kvarn, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are read without the index, so the first steps of the rest read no tokens."""
    monkeypatch.setattr(reading, "INDEX_SECONDS", 0.0)  # a layer in a step, as of larger models
    words = ("--prefill-rest", "sparse", "--each-block")
    run.build(f"{tmp_path}/pack", *BLOCKS, *words)
    info = json.loads(run("pack", "info", f"{tmp_path}/pack", "--json")[1])
    assert info["complete"] and "then sparse" in info["prefill"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--each-block reads the blocks of a text: add --prefill blocks:N"),
        (("--prefill", "exact"), "add --prefill blocks:N"),
        ((*BLOCKS, "--each"), "--each-block reads the blocks of one text: omit --each"),
        (("--ray", "local"), "add --prefill blocks:N"),
        (("--prefill", "blocks:512"), "blocks of 512 tokens cannot be read by several processes"),
    ],
)
def test_lines_that_have_no_effect_are_refused(
    run: Kvarn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    """Before a model is loaded."""
    monkeypatch.delattr("kvarn.commands.texts.pack_build.load_model")
    output = f"{tmp_path}/pack"
    build = ("pack", "build", *run.model, "-f", run.text, "-o", output, "--each-block")
    code, out, err = run(*build, *words)
    assert (code, out) == (1 if "512" in message else 2, "") and message in err.splitlines()[-1]
    assert not Path(output).exists()
