"""`kvarn ask`: what packs answer, and where it stands."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.commands import opening
from kvarn.commands.answering.best_packs import require_one_model
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.home import pack_path
from kvarn.runtime.lens.passages import MOST_PASSAGES
from kvarn.runtime.model import Model
from kvarn.runtime.packs import ranking
from kvarn.runtime.prefill import Prefill, SparsePrefill
from kvarn.runtime.rehearsal import Rehearsal
from kvarn.runtime.store.facts import PackHead
from kvarn.system.errors import KvarnError
from lab.peers.model import write_model

from ...runtime.reading import SHAPE
from ..pack_runner import Kvarn

QUESTION = "Who is there?"
SHORT = ("-n", "6")


@pytest.fixture
def packs(run: Kvarn, tmp_path: Path) -> Kvarn:
    run.build("mill")
    (tmp_path / "other.txt").write_text("Nobody.\n" * 40)
    run.text = str(tmp_path / "other.txt")
    run.build("other")
    return run


def test_an_answer_comes_with_its_passages(packs: Kvarn, tiny: Model) -> None:
    code, out, err = packs("ask", "mill", *SHORT, QUESTION)
    assert code == 0 and f"using the model of the pack: {packs.model[1]}" in err
    expected = kvarn.ask(tiny, pack_path("mill"), QUESTION, 6)
    assert 1 <= len(expected.passages) <= 3
    assert out.startswith(f"{expected.text}\n")
    lines = out.removeprefix(f"{expected.text}\n").splitlines()
    for line, quote in zip(lines, expected.passages, strict=True):
        assert line.startswith(f"  {quote.share:.0%}  {quote.place}: … ")
        assert " ".join(quote.text.split()) in line
    assert packs("ask", "mill", *SHORT, "--passages", "0", QUESTION)[1] == f"{expected.text}\n"
    assert packs("pack", "verify", "mill")[0] == 0


def test_each_pack_answers_for_itself(packs: Kvarn) -> None:
    alone = [packs("ask", name, *SHORT, QUESTION)[1] for name in ("mill", "other")]
    code, out, err = packs("ask", "mill", "other", *SHORT, QUESTION)
    assert code == 0 and out == f"mill:\n{alone[0]}\nother:\n{alone[1]}"
    assert err.count("using the model of the pack") == 1


def test_json_has_the_same(packs: Kvarn, tiny: Model) -> None:
    code, out, _ = packs("ask", "mill", "other", *SHORT, "--json", QUESTION)
    found = json.loads(out)
    assert code == 0 and found["question"] == QUESTION
    for answer, name in zip(found["answers"], ("mill", "other"), strict=True):
        path = pack_path(name)
        expected = kvarn.ask(tiny, path, QUESTION, 6)
        assert (answer["pack"], answer["text"]) == (str(path), expected.text)
        assert (answer["finish"], answer["n_tokens"]) == (expected.finish, expected.n_tokens)
        assert [one["place"] for one in answer["passages"]] == [
            one.place for one in expected.passages
        ]


def test_a_method_that_chooses_answers_too(packs: Kvarn) -> None:
    method = ["--method", "topk", "--budget", "8", "--window", "16"]
    code, out, _ = packs("ask", "mill", *SHORT, *method, QUESTION)
    assert code == 0 and " line " in out


def test_wrong_words_are_told_in_one_line(packs: Kvarn) -> None:
    for words, code, told in (
        (
            ["what", "is", "this"],
            1,
            "pack what: no such folder; `kvarn pack ls` lists the packs; a quest",
        ),
        ([packs.text, QUESTION], 1, f"{packs.text} is a file, not a pack: `kvarn pack build -f "),
        (["mill", " "], 2, "the question is empty"),
        (["mill", "other", "-m", "gone.gguf", QUESTION], 1, "gone.gguf: no such file"),
    ):
        ended, out, err = packs("ask", *words)
        assert (ended, out) == (code, "") and err.count("\n") == 1 and told in err


def test_more_passages_than_are_found_are_refused(packs: Kvarn) -> None:
    with pytest.raises(SystemExit) as ended:
        packs("ask", "mill", "--passages", str(MOST_PASSAGES + 1), QUESTION)
    assert ended.value.code == 2


def test_options_may_stand_anywhere(packs: Kvarn) -> None:
    words = ["ask", "mill", "other", QUESTION]
    expected = packs(*words, "-n", "3", "--passages=1")[1]
    for i in range(1, 4):
        line = [*words[:i], "-n", "3", *words[i:], "--passages=1"]
        assert packs(*line)[1] == expected
    code, out, _ = packs("ask", "mill", "--json", "-sys", "", *SHORT, "--", "-who?")
    assert code == 0 and json.loads(out)["question"] == "-who?"


def test_the_packs_of_a_folder_that_fit_best_answer(
    packs: Kvarn, tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wheel.txt").write_text("The wheel turned.")
    names, words = ("other.txt", "text.txt", "wheel.txt"), ("--each", "-o", "./library/", "-f")
    assert packs("pack", "build", *packs.model, *words, *names)[0] == 0
    folders = [tmp_path / "library" / name for name in ("other", "text", "wheel")]
    expected = kvarn.ask_packs(tiny, folders, QUESTION, 2, 6)
    line = ("ask", "--packs", "library", *SHORT, "--json", QUESTION)
    code, out, err = packs(*line, "--best", "2")
    assert code == 0 and "of 3 packs, the question fits best (ln p a token): " in err
    answers = json.loads(out)["answers"]
    assert [Path(one["pack"]).name for one in answers] == [Path(o.pack).name for o in expected]
    assert [(one["gain"], one["text"]) for one in answers] == [
        (pytest.approx(one.gain), one.answer.text) for one in expected
    ]
    first = Path(expected[0].pack).name
    (alone,) = json.loads(packs(*line)[1])["answers"]
    assert (Path(alone["pack"]).name, alone["text"]) == (first, expected[0].answer.text)
    named = ("library/other", "library/text", "library/wheel", "--best", "1")
    out = packs("ask", *named, *SHORT, QUESTION)[1]
    assert out.startswith(f"library/{first}:\n{expected[0].answer.text}\n")
    with tiny.context(store=kvarn.Disk("library/new", goal=9)) as context:
        context.prefill([1, 2, 3])
    assert "library: 1 of 4 packs are not finished" in packs(*line)[2]


def test_packs_that_cannot_be_compared_are_refused(
    packs: Kvarn, tiny_path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    write_model(other, "f16", SHAPE)
    (tmp_path / "b.txt").write_text("Nobody.")
    words = ("-f", str(tmp_path / "b.txt"), "-o", "b")
    assert packs("pack", "build", "-m", str(other), *words)[0] == 0
    (tmp_path / "empty").mkdir()
    for line, code, told in (
        (["mill", "b", "--best", "1"], 1, "a question is compared after packs of one model"),
        (["--packs", str(tmp_path / "empty")], 1, "there are no packs in"),
        (["--packs", str(pack_path("mill"))], 1, "is a pack: expected a folder with packs in it"),
        ([], 2, "no packs: kvarn ask PACK … QUESTION, or --packs FOLDER QUESTION"),
    ):
        ended, out, err = packs("ask", *line, QUESTION)
        assert (ended, out, err.count("\n")) == (code, "", 1) and told in err


def test_models_that_differ_by_an_adapter_are_told_apart() -> None:
    head = PackHead("mill", "Tiny", "f00d", "tiny.gguf", 9, 9, ["poet.gguf:0.5"])
    request = ContextRequest()
    heads = {"mill": (request, head), "plain": (request, replace(head, adapters=[]))}
    with pytest.raises(KvarnError, match=r"^mill .* with poet\.gguf:0\.5 and plain .*f00d\): "):
        require_one_model(heads)


def test_nothing_is_told_of_a_model_that_is_not_asked(packs: Kvarn) -> None:
    assert "no chat template" in packs("ask", "mill", *SHORT, QUESTION)[2]
    for n_ctx in ("32", "520"):  # for the pack; for the question after it
        code, out, err = packs("ask", "mill", "-c", n_ctx, QUESTION * 40)
        assert (code, out) == (1, "") and "no chat template" not in err, err


def test_packs_are_compared_with_kernels_that_were_compiled_ahead(
    packs: Kvarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    compare = ranking._log_likelihood

    def compared(*arguments: Any) -> float:
        steps.append("compare")
        return compare(*arguments)

    monkeypatch.setattr(opening.AheadCompiler, "begin", lambda *_: steps.append("compile"))
    monkeypatch.setattr(ranking, "_log_likelihood", compared)
    assert packs("ask", "mill", "other", "--best", "1", *SHORT, QUESTION)[0] == 0
    assert steps == ["compare", *["compile", "compare"] * 2, "compile"]


@pytest.mark.parametrize("words", [("ask", "mill", QUESTION), ("run", "--pack", "mill", "-p", "x")])
def test_a_short_text_needs_no_kernels_of_sparse_reading(
    packs: Kvarn, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Which its method would read a long one with."""
    compiled: list[Prefill] = []

    def spy(*arguments: Any) -> list[Rehearsal]:
        compiled.extend(arguments[4])
        return []

    monkeypatch.setattr(opening, "rehearsals", spy)
    assert packs(*words, *SHORT, "--method", "topk")[0] == 0
    assert compiled == []
    monkeypatch.setattr(SparsePrefill, "is_exact_within", lambda self, n_tokens: False)
    assert packs(*words, *SHORT, "--method", "topk")[0] == 0
    assert {type(prefill) for prefill in compiled} == {SparsePrefill}
