"""The automatic size of a server's contexts: the largest that memory has room for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.draft import DraftModel, Ngram
from kvarn.runtime.model import Model
from kvarn.runtime.serving.drafts import draft_request
from kvarn.runtime.serving.requests import context_sizes
from kvarn.runtime.serving.requests.context_sizes import fitting_size
from kvarn.runtime.store import Ram
from kvarn.runtime.store.ram.factory import SPARE
from kvarn.system.errors import KvarnError

from .live import start_of

REQUEST, MOST = ContextRequest(), 1 << 20


def taken(model: Model, n_ctx: int) -> int:
    """Bytes of a context in memory."""
    return Ram().empty(model.config).bytes_for(n_ctx)


@pytest.fixture
def trained(large: Model, small: Model, monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Model]:
    """Models that were trained on long texts; the smaller one on a quarter of it."""
    for model, n in ((large, MOST), (small, MOST // 4)):
        monkeypatch.setattr(model, "config", replace(model.config, n_ctx_train=n))
    return large, small


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("n_ctx", [1, 5, 256, 300])
def test_contexts_and_those_that_draft_fit_together_and_no_longer_ones(
    trained: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch, n_ctx: int, parallel: int
) -> None:
    """Of 1 to 300 segments; the draft's own end at a quarter of the training length."""
    large, small = trained
    n_ctx *= SEGMENT

    def needed(n: int) -> float:
        return parallel * (taken(large, n) + taken(small, min(n, MOST // 4))) / (1 - SPARE)

    room = int(needed(n_ctx)) + 4 * parallel  # rounding
    monkeypatch.setattr(context_sizes, "available_bytes", lambda: room)
    size = fitting_size(large, REQUEST, parallel, DraftModel(small))
    assert size == n_ctx and needed(n_ctx + 1) > room
    assert fitting_size(large, REQUEST, parallel, Ngram()) > size
    assert fitting_size(large, REQUEST, parallel) > size


def test_the_training_length_is_the_most(
    trained: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = trained
    monkeypatch.setattr(context_sizes, "available_bytes", lambda: 1 << 50)
    assert fitting_size(large, REQUEST, 4, DraftModel(small)) == MOST


def test_no_room_for_a_context_and_its_draft_is_refused(
    trained: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = trained
    room = 4 * (int(taken(large, 1) / (1 - SPARE)) + 4)
    monkeypatch.setattr(context_sizes, "available_bytes", lambda: room)
    assert fitting_size(large, REQUEST, 4) == SEGMENT
    with pytest.raises(KvarnError, match="no memory for 4 contexts, each with one of the draft: "):
        fitting_size(large, REQUEST, 4, DraftModel(small))


def test_options_of_a_draft_reach_it(large: Model, small: Model, tmp_path: Path) -> None:
    """As `kvarn serve` words them."""
    words = {"draft": str(small.path), "draft_max": 5, "draft_p_min": 0.25}
    request = draft_request(start_of(tmp_path, model=str(large.path), words=words))
    assert request is not None
    draft = request.open(lambda path: small)
    assert isinstance(draft, DraftModel)
    assert (draft.max_tokens, draft.min_probability) == (5, 0.25)
    with pytest.raises(KvarnError, match=r"--draft-p-min 0\.5 has no effect without --draft"):
        draft_request(start_of(tmp_path, words={"draft": "ngram", "draft_p_min": 0.5}))
