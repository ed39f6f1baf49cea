"""The measured queries of a model are those that attention gets, added up in NumPy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend.full import Full, FullAttention
from kvarn.runtime.context.measuring import N_FIRST, N_TOKENS, SEED

from ...models import tiny_cases, tiny_models


@dataclass(frozen=True)
class Collecting(Full):
    """Full attention that keeps all queries of prompts."""

    queries: dict[int, list[np.ndarray]]

    def open(self, model, store, n_ctx):
        return _Collecting(self.queries)


class _Collecting(FullAttention):
    records = False

    def __init__(self, queries: dict[int, list[np.ndarray]]) -> None:
        self._queries = queries

    def attend_prompt(self, layer, q, start, out) -> None:
        self._queries.setdefault(layer.index, []).append(q.copy())
        super().attend_prompt(layer, q, start, out)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_measured_queries_are_mean_squares_of_pairs(tmp_path: Path, name: str) -> None:
    case = next(case for case in tiny_cases.CASES if case.architecture == name)
    path = tmp_path / "m.gguf"
    tiny_models.write(path, case, 7)
    model = kvarn.load(path)
    config = model.config
    got = model.info.measure_queries()
    assert got.shape == (config.n_layers, config.n_kv_heads, config.head_dim)
    ids = np.random.default_rng(SEED).integers(0, config.n_vocab, N_TOKENS).tolist()
    collecting = Collecting({})
    context = model.context(N_TOKENS + 1, collecting)
    for _ in context.read_all_logits(ids[: config.n_ctx_train]):  # else the last layer has one row
        pass
    group, scale = config.n_heads // config.n_kv_heads, None
    for index, chunks in collecting.queries.items():
        q = np.concatenate(chunks)[N_FIRST:].astype(np.float64)
        squares = (q**2).mean(0).reshape(config.n_kv_heads, group, -1).mean(1)
        rope = config.kv_layers[index].rope
        assert rope is not None
        for j in range(config.n_kv_heads):
            for i in range(rope.n_rot // 2):
                pair = [i, i + rope.n_rot // 2] if name == "gemma3" else [2 * i, 2 * i + 1]
                squares[j, pair] = squares[j, pair].mean()
        scale = scale or got[index].sum() / squares.sum()  # the number of tokens does not matter
        np.testing.assert_allclose(got[index], scale * squares, rtol=1e-4)
    assert len(collecting.queries) == config.n_layers
