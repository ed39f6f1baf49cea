"""`--prefill` on command lines."""

import io
import json
import sys
from pathlib import Path

import pytest

from kvarn.runtime.home import session_path

from ..pack_runner import Kvarn

SPARSE = ["--prefill", "sparse", "--prefill-k", "16", "--prefill-from", "1024"]


BLOCKS = ["--prefill", "blocks:512"]


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
    assert "prefill     sparse (index sketch-20240517-scaled, k 16, from 1024, tail)" in said
    assert "probe       layer 0: " in said
    facts = json.loads(long("pack", "info", "mill", "--json")[1])
    assert facts["prefill"].startswith("sparse")
    assert [one["layer"] for one in facts["probe"]] == [0] and facts["probe"][0]["n_tokens"] > 5
    build = ["pack", "build", *long.model, "-f", long.text, "-o", "mill"]
    assert long(*build)[0] == 0  # nothing is left to read, in its own mode
    code, _, err = long(*build, "--prefill", "exact")
    assert code == 1
    assert "were read with --prefill sparse (index" in err and "and exact is asked for" in err


def test_packs_are_read_in_blocks_and_go_on_so(long: Kvarn, tmp_path: Path) -> None:
    long.build("mill", *BLOCKS)
    facts = json.loads(long("pack", "info", "mill", "--json")[1])
    n_apart = facts["n_tokens"] // 512 * 512
    assert facts["prefill"] == f"blocks:512 (up to token {n_apart:,})"
    long.build("mill", "--prefill", "blocks", "--prefill-size", "512")  # nothing is left to read
    code, _, err = long("pack", "build", *long.model, "-f", long.text, "-o", "mill", *SPARSE)
    assert code == 1 and "were read with --prefill blocks:512, and sparse (index" in err
    stats = tmp_path / "stats.json"
    ask = ["run", "--pack", "mill", "-p", "Who?", "-n", "1", "--stats-json", str(stats)]
    code, _, err = long(*ask, *BLOCKS)
    assert code == 0 and "--prefill blocks: what follows a pack is read exact" in err
    assert json.loads(stats.read_text())["prefill"] == "exact"
    ask = ["run", *long.model, "-f", long.text, "-n", "1", "-c", "4000", "--stats", *BLOCKS]
    code, _, err = long(*ask, "--prefill-rest", "sparse")
    assert code == 0 and "prefill blocks size=512 rest=sparse: attended to" in err


def test_a_session_is_read_as_its_first_prompt_says(
    long: Kvarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(long.text).read_text().replace("\n", " ")

    def chat(turn: str, *options: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{turn}\n"))
        command = ["chat", *long.model, "--session", "blocks", "-n", "2", "--temp", "0"]
        code, _, err = long(*command, "-c", "4000", *options)
        assert code == 0, err
        return json.loads(long("pack", "info", str(session_path("blocks")), "--json")[1])["prefill"]

    begun = chat(text, *BLOCKS)
    assert begun.startswith("blocks:512 (up to token 3,")
    assert chat(text[:100]) == begun


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


def test_a_chat_reads_questions_about_a_pack_sparsely(
    long: Kvarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    long.build("mill")
    said = "questions are read like generated tokens, sparsely"

    def chat(*options: str, room: str = "9000") -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("Who?\n"))
        code, _, err = long("chat", *options, *long.model, "-n", "2", "--temp", "0", "-c", room)
        assert code == 0, err
        return err

    assert said in chat("--pack", "mill", "--method", "hash")
    assert said not in chat("--pack", "mill", "--method", "hash", room="4000")  # all are first ones
    assert said not in chat("--pack", "mill")
    assert said not in chat("--method", "hash")  # there is nothing yet that a question is about
    # A session stores what it reads: a new one after a pack is begun so, others go on as they are.
    assert said in chat("--pack", "mill", "--method", "hash", "--session", "sparse")
    assert said not in chat("--session", "sparse", "--method", "hash")
    assert said not in chat("--pack", "mill", "--session", "exact")
    assert said not in chat("--session", "exact", "--method", "hash")

    def info(name: str) -> dict[str, str]:
        return json.loads(long("pack", "info", str(session_path(name)), "--json")[1])

    assert info("sparse")["prefill"].startswith("sparse") and info("exact")["prefill"] == "exact"
    assert info("sparse")["parent_prefill"] == info("exact")["parent_prefill"] == "exact"


def test_a_folder_goes_on_as_it_was_begun(long: Kvarn, tmp_path: Path) -> None:
    stats, said = tmp_path / "stats.json", "questions are read like generated tokens"
    ask = ["run", *long.model, "--method", "hash", "-n", "1", "--stats-json", str(stats), "-p"]

    def prefill(folder: str, *options: str) -> str:
        code, _, err = long(*ask, "Who?", "--kv", str(tmp_path / folder), *options)
        assert code == 0 and said not in err, err
        return json.loads(stats.read_text())["prefill"]

    assert [prefill("exact"), prefill("exact")] == ["exact", "exact"]
    assert [prefill("sparse", *SPARSE), prefill("sparse")] == [
        "sparse k=16 index=sketch from=1024"
    ] * 2


def test_questions_about_what_evicts_are_read_exactly(long: Kvarn, tmp_path: Path) -> None:
    keep = ["--keep", "hashevict", "--keep-budget", "400", "-c", "600", "-n", "1"]
    folder = str(tmp_path / "slots")
    assert long("run", *long.model, *keep, "--kv", folder, "-f", long.text)[0] == 0
    code, _, err = long("run", "--pack", folder, *keep, "--method", "hash", "-p", "Who?")
    assert code == 0, err
    assert "sparsely" not in err


def test_options_of_the_other_method_are_refused(run: Kvarn) -> None:
    for options, code, words in (
        (["--prefill-k", "50"], 2, "--prefill-k has no effect with --prefill exact"),
        (["--prefill", "sparse", "--prefill-k", "5"], 2, "cannot choose 5 tokens"),
        ([*SPARSE, "--keep", "streaming", "--keep-budget", "20", "-c", "64"], 1, "evicts some"),
        ([*BLOCKS, "--keep", "streaming", "--keep-budget", "20", "-c", "64"], 1, "evicts some"),
        *(
            (["--prefill", f"blocks:{n}"], 2, f"prefill blocks:{n}: expected a multiple of 512")
            for n in (0, 700)
        ),
        ([*BLOCKS, "--prefill-size", "512"], 2, "blocks:512 and --prefill-size say the same"),
        ([*BLOCKS, "--method", "topk", "--window", "600"], 1, "fewer than the window of 600 (--wi"),
    ):
        ended, _, err = run("run", *run.model, "-p", "x", "-n", "1", *options)
        assert ended == code and words in err
    code, _, err = run("run", *run.model, "-p", "x", "--prefill", "blocks:abc")
    assert code == 2 and "size: expected a whole number" in err
    with pytest.raises(SystemExit):
        run("run", *run.model, "--prefill", "sparse", "--prefill-index", "lsh")
    with pytest.raises(SystemExit):
        run("run", *run.model, "--prefill", "sparse:512")


def test_an_index_is_kept_with_the_pack(long: Kvarn) -> None:
    """By `pack build --method`, or later; without it, a reader says that it makes one."""
    ask = ["-p", "Who?", "-n", "2", "--temp", "0", "--method", "topk", "--budget", "16"]
    long.build("plain")
    assert "indexes of topk, " in long.build("kept", "--method", "topk")
    assert "indexes     topk\n" in long("pack", "info", "kept")[1]
    answers = {}
    for name, told in (("plain", True), ("kept", False), ("plain", False)):
        code, answers[name], err = long("run", "--pack", name, *ask)
        assert code == 0, err
        assert ("the pack has no index for this method" in err) == told
        if told:
            code, _, err = long("pack", "index", "plain", "--method", "topk")
            assert code == 0 and "indexes of topk, " in err, err
    assert answers["plain"] == answers["kept"]
    code, _, err = long("pack", "index", "plain")
    assert code == 1 and "an index is of a method that chooses tokens: give --method" in err
