"""What evicts, asked about a context that is read once."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvarn.evals.quality import Arm
from kvarn.evals.quality.asking import Asker
from kvarn.runtime.attend import Full
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.model import Model

from .runs import FULL, PLAN, STREAMING, answers_in, run

EVICTING = [
    STREAMING,
    *(
        Arm("full", "", name, "40%", Full(), KEEPS[name]("40%"))
        for name in ("hashevict", "nacl", "h2o", "tova", "snapkv", "random")
    ),
]


def test_a_context_that_evicts_is_read_once(tiny: Model, tmp_path: Path) -> None:
    """Whatever the order of the questions, and whether they are asked in one run."""
    wanted = replace(PLAN, tasks=("kv",), arms=(FULL, STREAMING))
    _, observer = run(tiny, wanted, tmp_path)
    assert observer.read == 2 * 2 * 2  # two chunks of a context, for each of two arms
    answers = [answers_in(path)[2:] for path in sorted(tmp_path.iterdir())]
    shutil.rmtree(tmp_path)
    run(tiny, replace(wanted, arms=(STREAMING,)), tmp_path)
    assert [answers_in(path) for path in sorted(tmp_path.iterdir())] == answers
    assert not list(tmp_path.glob("*/pack"))


@pytest.mark.parametrize("asked", ["inside", "apart", "decoded"])
@pytest.mark.parametrize("arm", EVICTING, ids=str)
def test_what_evicts_is_asked_as_a_context_that_is_read_anew(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: Arm, asked: str
) -> None:
    """Inside: one prompt. Otherwise the prompt ends before the question, of which it knows nothing:
    what stays of the context is what stays whatever follows."""
    posed, pose = [], Asker.read_question

    def spy(self, ids) -> None:
        pose(self, ids)
        kept = [np.sort(self.context.kept_positions(layer)) for layer in range(2)]
        posed.append((self._read, ids, self.context.logits.copy(), kept))

    monkeypatch.setattr(Asker, "read_question", spy)
    wanted = replace(PLAN, tasks=("kv",), lengths=(1300,), n_contexts=1, n_questions=4, arms=(arm,))
    run(tiny, replace(wanted, asked=asked), tmp_path)
    assert len(posed) == 4
    for read, ids, logits, kept in posed:
        context = tiny.context(read.n_ctx, keep=arm.keeping)
        if asked == "inside":
            context.prefill([*read.ids, *ids])
        else:
            context.prefill(read.ids)
            context.decode(ids[0])
            if asked == "apart":
                context.prefill(ids[1:])
            else:
                for token in ids[1:]:
                    context.decode(token)
        np.testing.assert_array_equal(context.logits, logits)
        for layer in range(2):
            np.testing.assert_array_equal(np.sort(context.kept_positions(layer)), kept[layer])
    if asked != "inside" and arm.keep not in ("streaming", "hashevict"):
        n = len(posed[0][0].ids)
        stays = [[set(row[row < n].tolist()) for row in kept[0]] for *_, kept in posed]
        assert all(each == stays[0] for each in stays)
        assert all(len(row) < n / 2 for row in stays[0])
