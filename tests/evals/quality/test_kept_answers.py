"""Answers and contexts that are kept: what uses them again, and under which name."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.evals.quality import Arm, evaluate
from kvarn.evals.quality.asking import Asker
from kvarn.runtime.attend import Full, Hash
from kvarn.runtime.keep import KEEPS, HashEvict
from kvarn.runtime.model import Model

from .runs import FLAT, FULL, HASH, PLAN, STREAMING, answers_in, run


def test_an_arm_that_names_a_default_gets_the_kept_answers_under_its_own_name(
    tiny: Model, tmp_path: Path
) -> None:
    """`hashevict` and `hashevict:bits=16` are the same method: asked once, told under both."""
    plain = Arm("full", "", "hashevict", "40%", Full(), KEEPS["hashevict"]("40%"))
    named = Arm("full", "", "hashevict:bits=16", "40%", Full(), HashEvict("40%", bits=16))
    told: list[list[str]] = []
    for arms in ((plain,), (plain, named)):
        told.append([])
        rows = list(
            evaluate(
                tiny, replace(PLAN, tasks=("kv",), arms=arms), tmp_path,
                answered=lambda cell, number, answers: told[-1].extend(a.arm for a in answers),
            )
        )  # fmt: skip
    assert told[0] == [str(plain)] * 4
    assert told[1] == ([str(plain)] * 2 + [str(named)] * 2) * 2
    assert rows[0].score == rows[1].score
    kept = [path.read_text() for path in tmp_path.glob("*/answers.jsonl")]
    assert [text.count("\n") for text in kept] == [2, 2]


def test_an_interrupted_run_goes_on(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = run(tiny, PLAN, tmp_path / "whole")
    real, asked = Asker.ask, []

    def ask(self, key, number):
        if len(asked) in (5, 11):
            asked.append(None)
            raise KeyboardInterrupt
        asked.append((self._read.folder, key, number))
        return real(self, key, number)

    monkeypatch.setattr(Asker, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        run(tiny, PLAN, tmp_path / "cut")
    (last,) = (path for path in (tmp_path / "cut").iterdir() if len(answers_in(path)) == 1)
    with (last / "answers.jsonl").open("a") as file:
        file.write('{"arm": "full", "key')
    with pytest.raises(KeyboardInterrupt):
        run(tiny, PLAN, tmp_path / "cut")
    assert run(tiny, PLAN, tmp_path / "cut")[0] == whole
    assert len(asked) == 2 + 16 == 1 + len(set(asked))
    assert [
        answers_in(tmp_path / "cut" / path.name) for path in (tmp_path / "whole").iterdir()
    ] == [answers_in(path) for path in (tmp_path / "whole").iterdir()]


def test_other_settings_are_other_contexts(tiny: Model, tmp_path: Path) -> None:
    one = replace(PLAN, tasks=("needle",), n_contexts=1, n_questions=1, arms=(FULL,))
    others = [one, replace(one, seed=1), replace(one, n_questions=2), replace(one, lengths=(500,)),
              replace(one, kinds=("q8_0", "q8_0"))]  # fmt: skip
    for number, other in enumerate(others, 1):
        run(tiny, other, tmp_path)
        assert len(list(tmp_path.iterdir())) == number
    assert other.cells()[0].key(replace(one, filler_name="book"), 0, tiny) not in {
        path.name for path in tmp_path.iterdir()
    }


def test_keys_tell_methods_and_their_indexes_apart(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = [FULL, HASH, FLAT, STREAMING, replace(HASH, attend=Hash(bits=64))]
    keys = [arm.key(tiny) for arm in arms]
    assert len(set(keys)) == 5
    assert replace(HASH, method="hash:probe=2").key(tiny) == keys[1]
    monkeypatch.setattr("kvarn.runtime.attend.hash.SEED", 7)  # other projections
    assert HASH.key(tiny) != keys[1]


def test_packs_are_dropped_and_built_anew_where_they_are_wanted(
    tiny: Model, tmp_path: Path
) -> None:
    wanted = replace(PLAN, tasks=("kv",), keep_packs=False)
    rows, observer = run(tiny, wanted, tmp_path)
    assert not list(tmp_path.glob("*/pack")) and not observer.lines[1:]
    more, observer = run(tiny, replace(wanted, arms=(FULL, FLAT)), tmp_path)
    assert more[0] == rows[0] and observer.read
