"""MagicPIG: a step is the paper's formula, and its tables are those of the stored keys."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvarn.cli import main
from kvarn.commands.options.arms import _budgets
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import draw_reference
from kvarn.ops.select import Tables, table_planes
from kvarn.ops.select.tables.planes import RUN
from kvarn.runtime.attend import AttendError, LayerView, MagicPig
from kvarn.runtime.attend.indexes import TableIndex
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.axes import ATTEND_AXIS
from kvarn.runtime.loading.model_info import ModelInfo
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk, KVStore, Ram

from .spy import Spy

METHOD = MagicPig(tables="6x30", sink=4, window=16, dense_layers="none")


def attended(q, keys, values, layer: int, scale: float, n_averaged: int) -> tuple:
    """One query head by itself: equation 11 in float64; how many tokens it reads, and their share
    of the softmax."""
    stop = len(keys)
    planes = table_planes(len(q), Tables(6, 30), (SEED, layer)).swapaxes(1, 2).reshape(-1, len(q))
    centred = keys.astype(np.float64) - keys[4:n_averaged].mean(0, dtype=np.float64)
    drawn, weights = draw_reference(q[None].astype(np.float64), centred, planes[:180], 6, 30)
    own = np.r_[:4, 4 + np.flatnonzero(drawn[0, 4 : stop - 16]), stop - 16 : stop]
    scores = scale * keys.astype(np.float64) @ q
    softmax = np.exp(scores - scores.max())
    logits = scores[own]
    logits[4:-16] += weights[0, own[4:-16]]
    mass = np.exp(logits - logits.max())
    return mass @ values[own] / mass.sum(), len(own), softmax[own].sum() / softmax.sum()


def test_it_measures_no_queries(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which scale the dimensions of sketches alone: its centre has a column for itself."""
    monkeypatch.setattr(ModelInfo, "measured", lambda *_: 1 / 0)
    with model.context(1200, METHOD) as context:
        context.prefill([1 + i % 500 for i in range(1100)])
        assert np.isfinite(context.decode(1)).all()
        assert "centre" in context.store.columns and "frame" not in context.store.columns


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_each_head_reads_what_it_drew_itself(model: Model, kind: str) -> None:
    """The output of each of the heads that share a KV head is that of the head alone."""
    spy, n = Spy(replace(METHOD, probe=1)), 1100
    ids = np.random.default_rng(0).integers(0, 512, n + 1).tolist()
    context = model.context(n + 1, spy, store=Ram(kind, kind))
    context.prefill(ids[:n])
    context.decode(ids[n])
    for index, (layer, q, stop, out) in spy.calls.items():
        store, counts, covered = layer.store, [], []
        keys, values = read_kv(store.segments(index), store.layout, 2, 0, stop)
        for h in range(4):
            want, count, share = attended(
                q[0, h], keys[:, h // 2], values[:, h // 2], index, layer.config.attention_scale,
                SEGMENT,
            )  # fmt: skip
            np.testing.assert_allclose(out[0, h], want, atol=1e-6 * max(1, np.abs(want).max()))
            counts.append(count)
            covered.append(share)
        assert len(set(counts)) > 2  # heads differ in what they draw
        reads = spy.inner.reads[index]
        assert max(counts) < reads.attended_tokens < 2 * stop * 0.9
        assert reads.covered_mass == pytest.approx(np.mean(covered), rel=1e-5)


def test_until_a_segment_is_full_and_in_dense_layers_all_is_read(model: Model) -> None:
    ids = np.random.default_rng(0).integers(0, 512, 1030).tolist()
    context = model.context(1030, replace(METHOD, dense_layers="0,16,…"))
    context.prefill(ids[:1020])
    for token in ids[1020:]:
        context.decode(token)
    first, second = context.stats.layers
    assert (first.steps, first.full_steps) == (0, 10)
    assert (second.steps, second.full_steps) == (7, 3)


class Tabled:
    """An index over a store of two layers."""

    def __init__(self, model: Model, store: KVStore) -> None:
        self.model, self.store = model, store
        self.index = TableIndex(self.model.info, self.store, Tables(6, 30), None)
        self.index.prepare(2 * RUN + 2000, 0)

    def append(self, start: int, stop: int, seed: int) -> None:
        """Keys are a function of position and seed."""
        self.store.reserve(stop)
        shape = stop, 2, 32
        k = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)[start:]
        for i in range(2):
            self.store.append(i, k, k, start)
            self.index.update(self.layer(i), start, stop)

    def layer(self, i: int) -> LayerView:
        return LayerView(i, i, self.model.config.kv_layers[i], self.store, None, Softmax(1.0))

    def cover(self, stop: int) -> list[tuple[int, int]]:
        """Index the stored tokens; which ones were hashed, for each layer."""
        hashed, add = [], self.index.add
        self.index.add = lambda *given: (hashed.append(given[3:]), add(*given))
        for i in range(2):
            self.index.update(self.layer(i), stop, stop)
        return hashed

    def items(self, n_tokens: int) -> np.ndarray:
        """The tables of full runs, and the codes after them; (layers, segments, heads, bytes)."""
        import ctypes

        found = []
        for i in range(2):
            (column,) = self.index.columns(self.layer(i))
            assert column.filled[i] == n_tokens // RUN * RUN
            size = SEGMENT * column.item_bytes
            for segment, address in enumerate(column.segments(i)[: -(-n_tokens // SEGMENT)]):
                raw = (ctypes.c_uint8 * (2 * size)).from_address(int(address))
                area = np.frombuffer(raw, np.uint8).reshape(2, size).copy()
                if segment >= n_tokens // RUN * RUN // SEGMENT:
                    codes = area[:, : 60 * SEGMENT].view(np.uint16).reshape(2, 30, SEGMENT)
                    area = codes[:, :, : n_tokens - segment * SEGMENT]
                found.append(area.ravel().view(np.uint8))
        return np.concatenate(found)


CUTS = [
    [(0, 700, 1), (700, 1024, 1), (1024, 1025, 1), (1025, 5000, 1)],
    [(0, 5000, 2), (1500, 5000, 1), (0, 1500, 1), (1500, 5000, 1)],  # tokens of the centre
    [(0, RUN - 1, 1), (RUN - 1, RUN, 1), (RUN, RUN + 40, 1)],
    [(0, RUN + 40, 1), (RUN + 40, 2 * RUN + 9, 2), (RUN + 40, RUN + 900, 1)],  # of a sorted run
    [(0, 2 * RUN, 2), (9000, RUN + 50, 1), (0, 9000, 1), (9000, RUN + 50, 1)],
]


@pytest.mark.parametrize("cuts", CUTS, ids=["grown", "frame", "run", "sorted", "first run"])
def test_tables_depend_on_stored_keys_alone(model: Model, cuts: list) -> None:
    one, other = (Tabled(model, Ram().open(model.info, 1)) for _ in range(2))
    for cut in cuts:
        one.append(*cut)
    stop = cuts[-1][1]
    other.append(0, stop, 1)
    np.testing.assert_array_equal(one.items(stop), other.items(stop))


def test_a_pack_keeps_the_tables_of_full_runs(model: Model, tmp_path: Path) -> None:
    """After a run that was saved has been overwritten in part, its tables are new everywhere."""
    pack, ram = Disk(tmp_path / "pack"), Tabled(model, Ram().open(model.info, 1))
    ids, n = list(range(500)) * 200, 2 * RUN + 40
    ram.append(0, n, 1)
    one = Tabled(model, pack.open(model.info, n))
    one.append(0, n, 1)
    one.store.commit(ids[:n], np.zeros(128, np.float32))
    one.store.close()
    again = Tabled(model, pack.open(model.info, n))
    hashed = again.cover(n)
    assert hashed == [(2 * RUN, n)] * 2
    np.testing.assert_array_equal(again.items(n), ram.items(n))
    for start, stop in ((RUN + 9000, 2 * RUN + 7), (9000, RUN + 7)):
        for tabled in (again, ram):
            tabled.append(start, stop, 2)
        again.store.commit([*ids[:start], *[1] * (stop - start)], np.zeros(128, np.float32))
        again.store.close()
        again = Tabled(model, pack.open(model.info, stop))
        assert again.cover(stop) == [(stop // RUN * RUN, stop)] * 2
        np.testing.assert_array_equal(again.items(stop), ram.items(stop))
    again.store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tables": "150"}, r"tables are '150', expected bits x number, such as 10x150"),
        ({"tables": "3x150"}, "tables 3x150 have 3 bits, expected 4 to 16"),
        ({"tables": "17x150"}, "tables 17x150 have 17 bits, expected 4 to 16"),
        ({"tables": "10x1"}, "tables 10x1 are 1 tables, expected 2 to 1000"),
        ({"tables": "10x1001"}, "tables 10x1001 are 1001 tables, expected 2 to 1000"),
        ({"index_bytes": 0}, "index-bytes is 0, expected at least 1"),
        ({"table_seed": -1}, "table_seed is -1, expected a whole number from 0"),
        ({"dense_layers": "x"}, "dense layers are 'x', expected numbers such as 0,16, or none"),
        ({"sink": -1}, "sink is -1, expected a whole number from 0"),
    ],
)
def test_impossible_options_are_refused_in_words(options: dict, words: str) -> None:
    with pytest.raises(AttendError, match=words):
        MagicPig(**options)


def test_layers_that_are_not_there_and_large_tables_are_refused(model: Model) -> None:
    with pytest.raises(AttendError, match="dense layer 2 does not exist: the layers are 0 to 1"):
        model.context(100, MagicPig(dense_layers="0,2"))
    each = Tables(10, 150).item_bytes * SEGMENT * 2 * 2
    words = (
        rf"hash tables 10x150 of a context of 1,030 tokens need {2 * each:,} bytes \(.*\), more "
        f"than index_bytes {2 * each - 1}: use fewer tables"
    )
    with pytest.raises(AttendError, match=words):
        model.context(1030, MagicPig(index_bytes=2 * each - 1))
    model.context(1030, MagicPig(index_bytes=2 * each)).close()
    with pytest.raises(AttendError, match=r"more than half of the .* that are free: use fewer"):
        Tabled(model, Ram().open(model.info, 1)).index.prepare(1 << 34, 0)


def test_another_seed_draws_by_other_planes_and_has_tables_of_its_own(model: Model) -> None:
    outputs = []
    for seed in (SEED, 3, 3):
        spy = Spy(replace(METHOD, table_seed=seed))
        with model.context(1101, spy, store=Ram()) as context:
            context.prefill([token % 500 for token in range(1100)])
            context.decode(7)
            outputs.append(np.array([out for *_, out in spy.calls.values()]))
            (column,) = spy.inner._index.columns(spy.calls[0].layer)
            name = f"tables-6x30-{seed}-c1"
            assert column is context.store.column(name, Tables(6, 30).item_bytes)
    assert not np.array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[1], outputs[2])


def test_the_dense_layers_are_every_16th_of_those_that_choose_by_default() -> None:
    assert MagicPig().dense(33) == {0, 16, 32}
    assert MagicPig().dense(18, [i for i in range(18) if i % 6 != 5]) == {5}
    assert MagicPig().dense(40, range(3)) == {3, 19, 35}
    assert MagicPig(dense_layers="3").dense(33) == {3}
    assert MagicPig(dense_layers="none").dense(33) == set()


def test_its_user_reads_what_it_lost_on_a_real_model(model: Model) -> None:
    with model.context(1030, METHOD) as context:
        (line,) = (line for line in context.notices if "magicpig" in line)
    assert line.startswith("method magicpig lost 0.11 to 0.26 nats a token on Gemma 3 270M")
    assert line.endswith("(0.11 to 0.17): topk reads less and loses less")


@pytest.mark.parametrize("command", ["run", "chat", "bench"])
def test_a_budget_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ["-p", "The mill", "-n", "2"] if command == "run" else []
    assert main([command, *prompt, "--method", "magicpig", "--budget", "2%"]) == 2
    said = capsys.readouterr().err
    assert "--budget has no effect with --method magicpig: it belongs to --method" in said


def test_eval_gives_it_no_budget() -> None:
    assert _budgets("magicpig:tables=8x75", ["1%", "2%"]) == [""]
    common = {"probe": 2}
    assert ATTEND_AXIS.parsed("magicpig:tables=8x75", common) == MagicPig(tables="8x75", probe=2)
