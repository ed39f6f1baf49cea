"""`--prefill` on command lines."""

import json
from pathlib import Path

import pytest

from .pack_runner import Kvarn

SPARSE = ["--prefill", "sparse", "--prefill-k", "16", "--prefill-from", "1024"]


@pytest.fixture
def long(run: Kvarn) -> Kvarn:
    """Texts of some 1,700 tokens."""
    text = Path(run.text)
    text.write_text(text.read_text() * 2)
    return run


def test_packs_are_read_sparsely_and_go_on_so(long: Kvarn, tmp_path: Path) -> None:
    said = long.build("mill", *SPARSE, "--prefill-probe", "64")
    assert "layer 0: " in said and "of the softmax covered, output error 0." in said
    said = long("pack", "info", "mill")[1]
    assert "prefill     sparse (index sketch-20240517, k 16, from 1024)" in said
    assert json.loads(long("pack", "info", "mill", "--json")[1])["prefill"].startswith("sparse")
    build = ["pack", "build", *long.model, "-f", long.text, "-o", "mill"]
    assert long(*build)[0] == 0  # nothing is left to read, in its own mode
    code, _, err = long(*build, "--prefill", "exact")
    assert code == 1
    assert "its prompts were read sparse" in err and "asked for is exact" in err


def test_questions_follow_the_method_unless_told(long: Kvarn, tmp_path: Path) -> None:
    long.build("mill")
    stats = tmp_path / "stats.json"
    ask = ["run", "--pack", "mill", "-p", "Who?", "-n", "1", "--stats-json", str(stats)]

    def prefill(*options: str) -> tuple[str, str]:
        code, _, err = long(*ask, *options)
        assert code == 0, err
        return json.loads(stats.read_text())["prefill"], err

    assert prefill()[0] == "exact"
    name, err = prefill("--method", "hash")
    assert name == "sparse index=sketch" and "--prefill exact reads all" in err
    assert prefill("--method", "hash", "--prefill", "exact")[0] == "exact"
    assert prefill(*SPARSE)[0] == "sparse k=16 index=sketch from=1024"


def test_options_of_the_other_method_are_refused(run: Kvarn) -> None:
    for options, words in (
        (["--prefill-k", "50"], "--prefill-k has no effect with --prefill exact"),
        (["--prefill", "sparse", "--prefill-k", "5"], "cannot choose 5 tokens"),
        ([*SPARSE, "--keep", "streaming", "--keep-budget", "20", "-c", "64"], "evicts some"),
    ):
        code, _, err = run("run", *run.model, "-p", "x", "-n", "1", *options)
        assert code == 1 and words in err
    with pytest.raises(SystemExit):
        run("run", *run.model, "--prefill", "sparse", "--prefill-index", "lsh")
