"""What methods lose: against the formulas in NumPy, and methods whose loss is known."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kvarn.cli import main
from kvarn.evals.prediction import compare_methods, passages_of, with_references
from kvarn.evals.prediction.losses import BLOCK, MethodLosses, TextLosses, log_softmax
from kvarn.runtime.attend import Full, Hash, TopK
from kvarn.runtime.bench import Observer
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.model import Model
from kvarn.system.errors import KvarnError

TEXT = "The mill stood by the river, and the miller knew every stone of it. "
# The 97.5% quantile of Student's t, as tables print it, by degrees of freedom.
T_TABLE = {5: 2.571, 3: 3.182}


def _texts() -> dict[str, str]:
    words = TEXT.split()
    draw = np.random.default_rng(5)
    return {f"text {i}": " ".join(draw.choice(words, 1500)) for i in range(2)}


def test_a_prediction_is_counted_by_its_formula() -> None:
    draw = np.random.default_rng(1)
    full, other = (draw.normal(size=50).astype(np.float32) for _ in range(2))
    p, q = (
        np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum() for x in (full, other)
    )
    losses = TextLosses()
    losses.add(log_softmax(full), log_softmax(other), 7)
    assert losses.nats == [pytest.approx(math.log(p[7] / q[7]))]
    assert losses.kl == [pytest.approx((p * np.log(p / q)).sum())]
    assert losses.agrees == [full.argmax() == other.argmax()]
    assert np.isfinite(log_softmax(np.array([3e38, -3e38, 0], np.float32))[0])


@pytest.mark.parametrize(("n_texts", "per_text", "n_units"), [(6, 100, 6), (2, 2 * BLOCK, 4)])
def test_intervals_are_over_texts_or_blocks(n_texts: int, per_text: int, n_units: int) -> None:
    nats = np.random.default_rng(2).normal(0.1, 1, (n_texts, per_text))
    losses = MethodLosses("m", [TextLosses(row.tolist()) for row in nats])
    means = nats.reshape(n_units, -1).mean(1)
    half = T_TABLE[n_units - 1] * means.std(ddof=1) / math.sqrt(n_units)
    low, high = losses.interval() or (0, 0)
    assert losses.nats == pytest.approx(nats.mean())
    assert (high - low) / 2 == pytest.approx(half, rel=1e-3)
    assert (high + low) / 2 == pytest.approx(nats.mean())


def test_one_unit_tells_no_interval() -> None:
    assert MethodLosses("m", [TextLosses([0.1] * BLOCK)]).interval() is None


def test_each_choosing_method_has_its_references() -> None:
    method = TopK(budget="5%", sink=2, window=9)
    named = with_references({"topk": method, "again": method, "full": Full()}, 3)
    assert list(named) == [
        "full", "topk", "exact choice of 5% (2 + 9)", "sinks and window (2 + 9)", "again",
    ]  # fmt: skip
    exact, alone = named["exact choice of 5% (2 + 9)"], named["sinks and window (2 + 9)"]
    assert exact == TopK(budget="5%", sink=2, window=9, index="flat", probe=3)
    assert (alone.sink, alone.window, alone.probe) == (2, 9, 3)


def test_methods_lose_as_much_as_they_leave_out(tiny: Model, tmp_path: Path) -> None:
    n_read, n_predicted = 1200, 20
    everything = TopK(budget=2000, index="flat")
    few = {"all": everything, "few": TopK(budget=8, sink=2, window=8, probe=4)}
    passages = passages_of(tiny, _texts(), n_read, n_predicted)
    results = compare_methods(
        tiny, passages, with_references(few, 4), tmp_path, ("f16", "f16"), None, Observer()
    )
    losses = {result.method: result for result in results}
    assert all(len(text.nats) == n_predicted for one in results for text in one.texts)
    assert losses["full"].nats == losses["full"].kl == losses["all"].kl == 0
    assert losses["full"].read is losses["all"].read is None
    alone = losses["sinks and window (2 + 8)"]
    stored = n_read + (1 + n_predicted) / 2
    assert alone.read == pytest.approx(10 / stored, rel=1e-3)
    few_read = losses["few"].read or 0
    assert alone.read < few_read <= (10 + 8) / stored * 1.01
    assert 0 < (alone.covered or 0) < (losses["exact choice of 8 (2 + 8)"].covered or 0) < 1
    # The same as contexts that read the text themselves.
    context, wanted = tiny.context(2000), []
    context.prefill(passages[0].read)
    sparse = tiny.context(2000, few["few"])
    sparse.prefill(passages[0].read)
    for token, following in zip(passages[0].following, passages[0].following[1:]):
        full, choosing = (log_softmax(one.decode(token)) for one in (context, sparse))
        wanted.append(full[following] - choosing[following])
    assert losses["few"].texts[0].nats == pytest.approx(wanted, abs=1e-12)


def test_what_evicts_reads_the_text_itself(tiny: Model, tmp_path: Path) -> None:
    """The same as a context that evicts beside one that keeps all."""
    n_read, n_predicted = 600, 12
    keeps = {name: KEEPS[name]("20%") for name in ("streaming", "tova")}
    passages = passages_of(tiny, _texts(), n_read, n_predicted)
    results = compare_methods(
        tiny, passages, {"full": Full()}, tmp_path, ("f16", "f16"), None, Observer(), keeps
    )
    assert [result.method for result in results] == ["full", "streaming", "tova"]
    n = n_read + n_predicted
    kept = [120, 120 + n_predicted]  # what evicts after a prompt grows again
    assert [result.read for result in results] == [None, *(pytest.approx(k / n) for k in kept)]
    for keep, result in zip(keeps.values(), results[1:]):
        for passage, text in zip(passages, result.texts):
            full, evicting, wanted = tiny.context(2000), tiny.context(n_read, keep=keep), []
            for context in (full, evicting):
                context.prefill(passage.read)
            for token, following in zip(passage.following, passage.following[1:]):
                whole, rest = (log_softmax(one.decode(token)) for one in (full, evicting))
                wanted.append(whole[following] - rest[following])
            assert text.nats == pytest.approx(wanted, abs=1e-12)
        assert result.kl > 0 and result.covered is result.error is None


def test_texts_are_read_once(tiny: Model, tmp_path: Path) -> None:
    passages = passages_of(tiny, _texts(), 600, 3)
    said: list[str] = []

    class Telling(Observer):
        def progress(self, what: str):
            return lambda done, total: said.append(what)

    for _ in range(2):
        compare_methods(
            tiny, passages, {"full": Full(), "hash": Hash()}, tmp_path, ("q8_0", "q8_0"), None,
            Telling(),
        )  # fmt: skip
    assert sorted(set(said)) == sorted(_texts()) and len(said) == 2 * len(range(0, 600, 512))


def test_short_texts_are_refused(tiny: Model) -> None:
    with pytest.raises(KvarnError, match=r"short has \d+ tokens, and --ctx 100 with --decode 5"):
        passages_of(tiny, {"short": TEXT}, 100, 5)


def test_the_command_prints_a_table_and_json(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for name, text in _texts().items():
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text(text)
    line = [
        "perplexity", "-m", str(tiny_path), "-f", *map(str, files), "--ctx", "1100",
        "--decode", "3", "--method", "topk:budget=16,hash:budget=16",
    ]  # fmt: skip
    assert main(line) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["method", "read", "nats", "95%", "KL", "same", "best", "covered",
                            "error"]  # fmt: skip
    assert [row.split("  ")[0] for row in rows] == [
        "full", "topk:budget=16", "exact choice of 16 (4 + 256)", "sinks and window (4 + 256)",
        "hash:budget=16", "exact choice of 16 (128 + 128)", "sinks and window (128 + 128)",
    ]  # fmt: skip
    assert main([*line, "--json", "--work", str(tmp_path / "packs")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in told["methods"]] == [row.split("  ")[0] for row in rows]
    assert told["methods"][0]["nats"] == 0 and len(list((tmp_path / "packs").iterdir())) == 2
    evicting = ["--keep", "streaming,random:budget=50", "--keep-budget", "20%,300"]
    assert main([*line[:-2], *evicting, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    kept = {one["method"]: one["read"] and round(one["read"] * 1103) for one in told["methods"]}
    assert kept == {
        "full": None, "keep streaming 20%": 220, "keep streaming 300": 300,
        "keep random:budget=50": 53,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "topk"], "--method has no effect without --decode T"),
        (["--work", "x"], "--work has no effect without --decode T"),
        (["--decode", "3", "--chunks", "2"], "--chunks has no effect with --decode"),
        (["--decode", "3", "--method", "tpk"], "unknown method 'tpk'"),
        (["--keep", "tova"], "--keep has no effect without --decode T"),
        (["--decode", "3", "--keep-budget", "9"], "--keep-budget has no effect without --keep"),
        (["--decode", "3", "--keep", "oracle"], "unknown keep 'oracle'"),
        (
            ["--decode", "3", "--ctx", "99", "--keep", "tova", "--keep-budget", "99"],
            "--keep tova 99 evicts none of 99 tokens: use a smaller --keep-budget",
        ),
        (
            ["--decode", "3", "--ctx", "9999", "--keep", "tova", "--prefill", "sparse"],
            "--keep tova evicts some",
        ),
        (["--decode", "9", "--ctx", "10000"], "tokens, and --ctx 10,000 with --decode 9 needs"),
    ],
)
def test_what_does_not_fit_is_one_line(
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    code = 1 if "evicts some" in message or "tokens, and" in message else 2
    (text := tmp_path / "text.txt").write_text(TEXT)
    assert main(["perplexity", "-m", str(tiny_path), "-f", str(text), *options]) == code
    out, err = capsys.readouterr()
    assert message in err and not out
