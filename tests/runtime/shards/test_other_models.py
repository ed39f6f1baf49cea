"""Models whose layers are not those of a llama: with windows and sinks, with states, with one row
for keys and values."""

from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend, AttendError
from kvarn.runtime.packs.pack import build_pack, index_pack

from ...models import tiny_cases, tiny_models
from .processes import opened, over, shards

N = 2100
HASH = kvarn.Hash(budget=100, sink=4, window=16, encoders="simhash")
METHODS = kvarn.Full(), HASH, kvarn.TopK(budget=100, sink=4, window=16, index="flat")


def made(name: str, folder: Path) -> tuple[kvarn.Model, Path, list[int]]:
    """A tiny model of that name, a pack of it, and the ids in it."""
    (case,) = (case for case in tiny_cases.CASES if case.name == name)
    tiny_models.write(folder / "model.gguf", case, 1)
    model = kvarn.load(folder / "model.gguf")
    ids = np.random.default_rng(7).integers(3, model.config.n_vocab, N).tolist()
    build_pack(model, folder / "pack", ids, N)
    return model, folder / "pack", ids


def logits(model: kvarn.Model, pack: Path, attend: Attend) -> np.ndarray:
    with opened(model, pack, attend) as context:
        found = [context.prefill([5, 6, 7]).copy()]
        return np.stack([*found, *(context.decode(i).copy() for i in (5, 9, 11))])


@pytest.mark.parametrize("name", ["gpt-oss", "deepseek2-576", "gemma2-caps", "gemma3", "qwen35"])
def test_logits_are_those_of_one_context(tmp_path: Path, name: str) -> None:
    model, pack, _ = made(name, tmp_path)
    index_pack(model, pack, HASH)
    with shards(pack, (0, 1), (1, 2)) as processes:
        addresses = [one.address for one in processes]
        for method in METHODS:
            one = logits(model, pack, method)
            other = logits(model, pack, over(addresses, method))
            assert np.abs(one - other).max() < 1e-3 * one.std(), method


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    model, pack, _ = made("gemma4", tmp_path)
    with shards(pack, (0, 1)) as (shard,), pytest.raises(AttendError, match="layers differ"):
        opened(model, pack, over([shard.address]))
