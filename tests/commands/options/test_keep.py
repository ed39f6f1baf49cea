"""`--keep` and `--keep-budget`: long texts in a bounded cache, and refusals in words."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from kvarn.cli import main

COMPILING = re.compile(r"kvarn: (compiling|\[\d/\d\]) .*\n")
LIMIT = "kvarn: stopped after 4 tokens, the limit of -n (-n -1: no limit)"
RUN = ["run", "--temp", "0", "-n", "4", "--ctx", "400"]


def run(capsys: pytest.CaptureFixture[str], model: Path, *arguments: str) -> tuple[int, str, str]:
    code = main([*RUN, "-m", str(model), "-p", "the mill by the river " * 8, *arguments])
    captured = capsys.readouterr()
    return code, captured.out, COMPILING.sub("", captured.err)


@pytest.mark.parametrize("keep", ["streaming", "hashevict"])
def test_a_prompt_longer_than_the_budget_is_read(
    keep: str, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = tmp_path / "stats.json"
    options = ["--keep", keep, "--keep-budget", "5%", "--stats-json", str(stats)]
    code, out, err = run(capsys, tiny_path, *options)
    assert code == 0
    assert err == f"{LIMIT}\n"
    assert out
    figures = json.loads(stats.read_text())
    assert figures["prefilled_tokens"] > 100
    assert figures["n_ctx"] == 400


@pytest.mark.parametrize("keep", ["streaming", "hashevict"])
def test_a_prompt_longer_than_the_context_is_read(
    keep: str, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is that of a context with room for the prompt, and the same budget."""
    small = run(capsys, tiny_path, "--ctx", "100", "--keep", keep, "--keep-budget", "20%")
    stats = ["--stats", "--stats-json", str(tmp_path / "stats.json")]
    large = run(capsys, tiny_path, "--keep", keep, "--keep-budget", "20", *stats)
    assert (small[0], large[0]) == (0, 0)
    assert small[1] == large[1] != ""
    figures = json.loads((tmp_path / "stats.json").read_text())
    read = figures["prefilled_tokens"] + figures["decoded_tokens"]
    assert read > 100
    assert f"; kept 20 of {read} tokens, evicted {read - 20}\n" in large[2]
    assert (figures["kept_tokens"], figures["evicted_tokens"]) == (20, read - 20)
    refused = run(capsys, tiny_path, "--ctx", "100")
    assert refused[0] == 1 and "do not fit: the context has room for 100" in refused[2]


@pytest.mark.parametrize("keep", ["nacl", "h2o", "tova", "snapkv", "l2norm", "random"])
def test_a_prompt_is_held_whole_and_then_evicted(
    keep: str, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond `--ctx` too: the text is that of a context with room for the prompt."""
    small = run(capsys, tiny_path, "--ctx", "300", "--keep", keep, "--keep-budget", "25%")
    stats = ["--stats", "--stats-json", str(tmp_path / "stats.json")]
    large = run(capsys, tiny_path, "--keep", keep, "--keep-budget", "75", *stats)
    assert (small[0], large[0]) == (0, 0)
    assert small[1] == large[1] != ""
    told = [line for line in small[2].splitlines() if "holds a prompt whole" in line]
    assert len(told) == 1 and "for 300 tokens, then " in told[0]
    figures = json.loads((tmp_path / "stats.json").read_text())
    prompt, after = figures["prefilled_tokens"], figures["decoded_tokens"]
    assert prompt > 100
    assert (figures["kept_tokens"], figures["evicted_tokens"]) == (75 + after, prompt - 75)
    assert figures["most_kv_bytes"] > 0
    assert (figures["most_query_bytes"] > 0) == (keep not in ("l2norm", "random"))
    assert (
        f"; kept {75 + after} of {prompt + after} tokens, evicted {prompt - 75}; held" in large[2]
    )


def test_going_beyond_the_training_length_is_said_once(
    trained_on_64: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger `--ctx` is named at once, with any method; a smaller one is gone on beyond later."""
    said = "kvarn: reading beyond the 64 tokens that the model was trained on"
    at_once = "kvarn: --ctx 400 is more than the 64 tokens "
    keep = ["--keep", "streaming", "--keep-budget", "20"]
    run(capsys, trained_on_64, "--ctx", "400")
    assert run(capsys, trained_on_64, "--ctx", "400")[2].startswith(at_once)
    for options, said_of_them in ((["--ctx", "400"], at_once), (["--ctx", "60"], said)):
        run(capsys, trained_on_64, *options, *keep)  # compiling ahead reads beyond it, too
        code, _, err = run(capsys, trained_on_64, *options, *keep)
        assert (code, err.count("\n"), err.count(said_of_them)) == (0, 2, 1)
    for _ in range(2):
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO("a mill by the river\n" * 4))
        assert main(["chat", "-m", str(trained_on_64), "-n", "40", *keep, "--stats"]) == 0
    err = capsys.readouterr().err
    assert err.count(said) == 1
    assert ", evicted " in err and " of 64 tokens in the context" not in err


def test_a_budget_with_room_for_all_says_so(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run(capsys, tiny_path)
    roomy = run(capsys, tiny_path, "--keep", "hashevict", "--keep-budget", "400")
    assert roomy[:2] == plain[:2]
    assert roomy[2] == (
        f"kvarn: nothing is evicted: --keep-budget 400 has room for all 400 tokens\n{LIMIT}\n"
    )


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--keep-budget 50", 2, "--keep-budget has no effect with --keep all"),
        ("--keep hashevict --keep-budget 14", 2, "14 tokens leaves nothing to evict"),
        ("--keep streaming --keep-budget 1%", 1, "1% of 400 tokens leaves nothing to evict"),
        ("--keep snapkv --keep-budget 16%", 1, "16% of 400 tokens leaves nothing to evict besid"),
        ("--keep snapkv --keep-every 9", 2, "every is 9, fewer than the 64 tokens"),
        ("--keep tova --keep-random none", 2, "--keep-random has no effect with --keep tova: it"),
        ("--keep streaming --keep-every 9", 2, "--keep-every has no effect with --keep streaming"),
    ],
)
def test_impossible_combinations_are_one_line(
    options: str, code: int, message: str, tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, out, err = run(capsys, tiny_path, *options.split())
    assert (ended, out, err.count("\n")) == (code, "", 1)
    assert message in err


def test_a_chat_goes_on_beyond_its_budget(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns are appended; /undo, which would bring evicted tokens back, reads everything again."""
    turns = ["a mill by the river", "by the sea", "/stats", "/undo", "by the lake", "/stats"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(turns) + "\n"))
    options = ["--ctx", "2000", "--keep", "streaming", "--keep-budget", "30", "-n", "8"]
    assert main(["chat", "-m", str(tiny_path), "--temp", "0", *options]) == 0
    reads = [line for line in capsys.readouterr().err.splitlines() if "last turn" in line]
    assert [line.split()[3] == "0" for line in reads] == [False, True]
