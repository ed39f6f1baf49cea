"""`kvarn eval`: its lists, its table, its errors."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.measuring import eval as eval_command
from kvarn.evals.tasks import ALL_TASKS
from kvarn.runtime.attend.hash import NOTICE
from kvarn.system.errors import KvarnError

Eval = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Eval:
    """Runs `kvarn eval` over small contexts: exit code, stdout, stderr."""

    def command(arguments: str) -> tuple[int, str, str]:
        small = "--task needle --length 400 --contexts 2 --questions 1 --work"
        options = [*small.split(), str(tmp_path / "work"), *arguments.split()]
        code = main(["eval", "-m", str(tiny_path), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_the_table_has_a_row_for_each_task_length_method_and_budget(run: Eval) -> None:
    methods = "--method full,hash:sink=4:window=16,topk:index=flat:sink=4:window=16:budget=9"
    code, out, err = run(f"{methods} --budget 5,2% --length 400,300 --probe 4")
    assert code == 0
    head, line, *rows = [
        [cell.strip() for cell in text.strip("|").split("|")] for text in out.splitlines()
    ]
    assert head == [
        "task", "length", "method", "budget", "score", "95%", "n", "difference", "difference, 95%",
        "covered", "error", "read", "entropy",
    ]  # fmt: skip
    assert len(line) == len(head)
    assert [row[1:4] for row in rows] == [
        [length, method, budget]
        for length in ("400", "300")
        for method, budget in (
            ("full", ""),
            ("hash:sink=4:window=16", "5"),
            ("hash:sink=4:window=16", "2%"),
            ("topk:index=flat:sink=4:window=16:budget=9", ""),
        )
    ]
    assert all(row[7:] == [""] * 6 for row in rows[::4])
    assert all(row[9].endswith("%") for i, row in enumerate(rows) if i % 4)
    assert sum("needle at 400, full: 0.0" in told for told in err.splitlines()) == 1


def test_json_is_a_list_of_rows(run: Eval) -> None:
    code, out, _ = run("--json --method full,hash:sink=4:window=16")
    assert code == 0
    full, hashed = json.loads(out)
    assert {"task", "length", "method", "budget", "score", "ci95", "n"} < set(full)
    assert (full["task"], full["length"], full["method"], full["n"]) == ("needle", 400, "full", 2)
    assert (full["against"], full["difference"]) == ("", None)
    assert (hashed["against"], hashed["budget"]) == ("full", "2%")
    low, high = hashed["difference_ci95"]
    assert low <= hashed["difference"] == hashed["score"] - full["score"] <= high
    assert 0 <= full["ci95"][0] <= full["score"] <= full["ci95"][1] <= 1


def test_what_is_kept_can_be_compared(run: Eval) -> None:
    code, out, _ = run("--keep all,streaming --keep-budget 50%,20%")
    assert code == 0
    head, _, *rows = out.splitlines()
    assert " keep " in head
    assert [row.split("|")[5].strip() for row in rows] == ["", "streaming 50%", "streaming 20%"]


def test_ways_of_reading_can_be_compared(run: Eval) -> None:
    arguments = "--prefill exact,sparse:k=16:from=1024,blocks:512 --length 1300 --task needle,kv"
    code, out, _ = run(arguments)
    assert code == 0
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines()]
    column = head.index("prefill")
    assert [(row[1], row[column]) for row in rows] == [
        (task, prefill)
        for task in ("needle", "kv", "all tasks")
        for prefill in ("exact", "sparse:k=16:from=1024", "blocks:512")
    ]
    code, out, _ = run(f"{arguments} --json")
    found = json.loads(out)
    assert [row["prefill"] for row in found] == [row[column] for row in rows]
    assert found[7]["difference"] == pytest.approx(
        (found[1]["difference"] + found[4]["difference"]) / 2
    )


def test_texts_are_the_hay(run: Eval, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("The mill stood by the river. " * 40)
    code, _, _ = run(f"--text {folder}")
    assert code == 0
    texts = [path.read_text() for path in (tmp_path / "work").glob("*/context.txt")]
    assert all(text.count("The mill stood by the river.") > 3 for text in texts)


def test_ruler_stands_for_its_kinds(run: Eval) -> None:
    code, _, err = run("--task ruler --length 20")
    assert code == 1 and "task niah_single_1 does not fit in 20 tokens" in err
    code, _, err = run("--task ruler,vt")
    assert code == 2 and err == "kvarn: vt is asked for twice\n"


def test_a_question_mark_lists_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--task", "?"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ALL_TASKS)
    assert all(len(line.split()) > 4 and line.endswith(".") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ("--task dance", 2, "unknown task 'dance', expected some of needle, kv"),
        ("--method full,full", 2, "full is asked for twice"),
        ("--method dance", 2, "unknown method 'dance'"),
        ("--keep some", 2, "unknown keep 'some', expected one of all"),
        ("--prefill some", 2, "unknown prefill 'some', expected one of blocks, exact, sp"),
        ("--prefill sparse:k=5", 2, "cannot choose 5 tokens"),
        ("--prefill sparse --keep streaming", 1, "--keep streaming evicts some"),
        ("--text /none", 1, "found no *.txt"),
        ("--length 5", 1, "does not fit in 5 tokens"),
    ],
)
def test_errors_are_one_line(
    run: Eval, tmp_path: Path, arguments: str, code: int, expected: str
) -> None:
    (tmp_path / "empty").mkdir()
    ended, out, err = run(arguments.replace("/none", str(tmp_path / "empty")))
    assert (ended, out) == (code, "")
    assert expected in err and err.count("\n") == 1


@pytest.mark.parametrize("method", ["hash:bits=many", "topk:budget=lots", "topk:index=tree"])
def test_a_wrong_value_in_a_list_is_wrong_usage(run: Eval, method: str) -> None:
    code, out, err = run(f"--method {method}")
    assert (code, out) == (2, "")
    assert f"{method}: {method[5:].partition('=')[0]}: expected " in err and err.count("\n") == 1


def test_an_answer_is_what_run_says_about_the_pack(
    run: Eval, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = ["--method", "topk", "--budget", "20", "--sink", "4", "--window", "16"]
    code, _, _ = run("--method full,topk:sink=4:window=16 --budget 20 --length 1300")
    assert code == 0
    for folder in (tmp_path / "work").iterdir():
        question = json.loads((folder / "questions.json").read_text())[0]
        lines = (folder / "answers.jsonl").read_text().splitlines()
        answers = {answer["arm"]: answer["text"] for answer in map(json.loads, lines)}
        for arm, words in (("full", []), ("topk:sink=4:window=16 20", method)):
            asked = ["-p", "\n" + question["text"], "--temp", "0", "-n", "8", *words]
            pack = ["--pack", str(folder / "pack")]
            assert main(["run", "-m", str(tiny_path), *pack, *asked]) == 0
            said = capsys.readouterr().out
            assert answers[arm][:8] and said.startswith(answers[arm][:8])


def test_answers_are_written_as_they_were_given(run: Eval, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    code, out, _ = run(
        f"--method full,hash:sink=4:window=16 --probe 2 --questions 3 --json --answers {path}"
    )
    assert code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["context"], line["arm"]) for line in lines] == [
        (number, arm) for number in (0, 1) for arm in ("full", "hash:sink=4:window=16 2%")
    ]
    rows = json.loads(out)
    for row, arm in zip(rows, ("full", "hash:sink=4:window=16 2%"), strict=True):
        scores = [score for line in lines if line["arm"] == arm for score in line["scores"]]
        assert len(scores) == row["n"] and sum(scores) / len(scores) == row["score"]
    hashed = lines[1]
    assert all(0 < value < 7 for value in hashed["entropy"])  # ln 400 is 6
    assert {*lines[0]["entropy"]} == {None}


def test_a_model_without_a_chat_template_is_told_at_once(run: Eval, tmp_path: Path) -> None:
    code, out, err = run("--chat")
    assert (code, out) == (1, "") and len(err.splitlines()) == 1
    assert "has no chat template: ask without --chat" in err
    assert not (tmp_path / "work").exists()


def test_nothing_is_told_of_indexes_in_memory(run: Eval) -> None:
    code, _, err = run("--task kv --length 1400 --contexts 2 --method topk:window=16:budget=9")
    assert code == 0 and "has no index" not in err, err


def test_answers_are_not_written_over_a_folder(run: Eval, tmp_path: Path) -> None:
    code, _, err = run(f"--answers {tmp_path}")
    assert code == 1 and str(tmp_path) in err


def test_a_keep_method_may_name_its_budget(run: Eval) -> None:
    code, out, _ = run("--keep all,streaming:budget=50%,streaming --keep-budget 20%")
    assert code == 0
    rows = out.splitlines()[2:]
    assert [row.split("|")[5].strip() for row in rows] == [
        "", "streaming:budget=50%", "streaming 20%",
    ]  # fmt: skip


def test_processes_that_share_the_contexts_give_the_same(
    run: Eval, tiny_path: Path, tmp_path: Path
) -> None:
    """Rows, scores and answers are those of one process, each question is asked once."""
    lists = "--task needle,kv --contexts 3 --questions 2 --method full,hash:sink=4:window=16"
    files = [tmp_path / "alone.jsonl", tmp_path / "shared.jsonl"]
    tables = []
    for number, file in enumerate(files, 1):
        work = tmp_path / str(number)
        code, out, err = run(f"{lists} --processes {number} --work {work} --answers {file}")
        assert code == 0 and "early" not in err
        assert err.count("no learned encoders") == 1
        tables.append(out)
    assert tables[0] == tables[1] and files[0].read_bytes() == files[1].read_bytes()
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert len(names) == 6
    for name in names:
        alone, shared = (tmp_path / part / name / "answers.jsonl" for part in "12")
        assert alone.read_bytes() == shared.read_bytes()


def test_what_two_processes_say_is_shown_once(
    run: Eval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process tells what it sees of a method; the user reads it once."""
    monkeypatch.setattr(eval_command, "_help", says_the_notice)
    code, _, err = run("--processes 2 --method hash:sink=4:window=16")
    assert code == 0 and err.count("no learned encoders") == 1


def says_the_notice(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    say(NOTICE)


def test_what_a_process_leaves_is_answered(
    run: Eval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that ends at once costs nothing but time; a context in other hands is waited for."""
    monkeypatch.setattr(eval_command, "_help", ends_early)
    code, out, err = run("--processes 2")
    assert code == 0 and "a process that took a part of the work ended early" in err
    assert "no memory for it" in err
    assert out == run("")[1]


def ends_early(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    raise KvarnError("no memory for it")
