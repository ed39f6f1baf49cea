"""Contexts over one pack: their answers have the bits of contexts that share nothing, and each of
them takes memory for what it reads itself, not for the pack."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from kvarn.runtime.attend import Attend, Hash, TopK
from kvarn.runtime.context import Context
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import Exact
from kvarn.runtime.store import Disk
from kvarn.runtime.store.disk import store as disk_store

from ...programs import printed
from ..reading import ids_of

N_CTX, N_TOKENS, N_ANSWERED = 8192, 5000, 12
NEVER = 1 << 60


def answer(context: Context, question: list[int]) -> list[np.ndarray]:
    """The logits after a question, and of the tokens that are generated greedily."""
    logits = [context.prefill(question).copy()]
    for _ in range(N_ANSWERED):
        logits.append(context.decode(int(logits[-1].argmax())).copy())
    return logits


@pytest.mark.parametrize("attend", [Hash(budget=64), TopK(budget=64)], ids=["hash", "topk"])
def test_answers_have_the_bits_of_contexts_that_share_nothing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attend: Attend
) -> None:
    pack, ids = tmp_path / "pack", ids_of(model, N_TOKENS)
    with model.context(N_CTX, attend, store=Disk(pack), prefill=Exact()) as context:
        context.prefill(ids)

    def opened(name: str, worth_copying: int) -> Context:
        monkeypatch.setattr(disk_store, "WORTH_COPYING", worth_copying)
        disk = Disk(tmp_path / name, parent=pack)
        return model.context(N_CTX, attend, store=disk, prefill=Exact())

    questions = [ids_of(model, 40 + 700 * n, seed=n) for n in range(3)]
    wanted = []
    for n, question in enumerate(questions):
        with opened(f"mapped-{n}", NEVER) as context:
            assert not context.store.copied_bytes
            wanted.append(answer(context, question))
    contexts = [opened(f"shared-{n}", 1) for n in range(3)]
    assert all(context.store.copied_bytes for context in contexts)
    for context, question, logits in zip(contexts, questions, wanted, strict=True):
        np.testing.assert_array_equal(answer(context, question), logits)
        context.close()


READERS = """
import json, sys
import kvarn
from kvarn.runtime.prefill import Exact
from kvarn.runtime.store.disk import store
store.WORTH_COPYING = 1
model = kvarn.load(sys.argv[1], threads=1)
def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Private_Dirty"))
def opened():
    disk = kvarn.Disk(sys.argv[2], read_only=True)
    context = model.context(70_000, kvarn.Hash(budget=64), store=disk, prefill=Exact())
    for token in range(3):
        context.decode(token)
    return context
contexts = [opened(), opened()]
before = private_bytes()
contexts += [opened() for _ in range(6)]
print(json.dumps([(private_bytes() - before) / 6, contexts[-1].store.copied_bytes]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell private memory")
def test_eight_readers_take_no_memory_for_the_pack(model: Model, tmp_path: Path) -> None:
    """What the third to the eighth take each grows with its tokens by two lists, of 8 bytes for
    each of them; their ids, and the index that is copied to memory, are there once."""
    grown, index = [], []
    for n_segments in 4, 60:
        pack = tmp_path / str(n_segments)
        disk = Disk(pack, "q8_0", "q8_0")
        with model.context(70_000, Hash(budget=64), store=disk, prefill=Exact()) as context:
            context.prefill(ids_of(model, 1500))
            context.fill(n_segments * 1024 + 5)
            context.index()
        n_private, n_index = json.loads(printed(READERS, model.info.path, pack))
        grown.append(n_private)
        index.append(n_index)
    assert index[1] > 14 * index[0] > 0
    assert grown[1] - grown[0] < 24 * 1024 * (60 - 4) + (1 << 17), (grown, index)
