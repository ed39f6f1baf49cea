"""One registry an axis: command lines, Python names and documents follow from it."""

from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import kvarn
from kvarn.cli import main
from kvarn.runtime.attend import ATTENDS, Attend, AttendError, BoundAttend
from kvarn.runtime.keep import KEEPS, KeepAll, KeepError
from kvarn.runtime.methods import called, option
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import PREFILLS
from kvarn.runtime.store import STORES

AXES = ATTENDS, KEEPS, STORES, PREFILLS
GUIDES = Path(kvarn.__file__).resolve().parent / "docs" / "guides"


@dataclass(frozen=True)
class EveryNth(Attend):
    """A toy: of the stored tokens every `step`-th, counted back from the newest."""

    name: ClassVar[str] = "nth"
    summary: ClassVar[str] = "every second token"

    step: int = option(2, "read one token of every N", int)

    def open(self, model, store, n_ctx):
        if self.step < 1:
            raise AttendError(f"step is {self.step}, expected 1 or more")
        return Bound(self.step)


class Bound(BoundAttend):
    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, layer, q, start, out) -> None:
        from kvarn.ops.reference.attention import read_kv

        store, n_heads = layer.store, q.shape[1]
        keys, values = read_kv(
            store.segments(layer.index), store.layout, store.n_kv_heads, 0, start + len(q)
        )
        group = n_heads // store.n_kv_heads
        for row, position in enumerate(range(start, start + len(q))):
            read = np.arange(position, -1, -self.step)
            for head in range(n_heads):
                scores = keys[read, head // group] @ q[row, head] * layer.config.attention_scale
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ values[read, head // group] / weights.sum()


@pytest.fixture
def registered() -> Iterator[None]:
    assert kvarn.register(EveryNth) is EveryNth is kvarn.register(EveryNth)
    yield
    del ATTENDS["nth"]


@pytest.mark.usefixtures("registered")
class TestARegisteredMethod:
    RUN = ("run", "-p", "the mill by the river", "-n", "2", "--temp", "0", "--ctx", "64")

    def test_gives_the_option_and_its_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["run", "--help-all"])
        words = " ".join(capsys.readouterr().out.split())
        assert "nth: every second token" in words
        assert "--method nth: --step N read one token of every N (default 2)" in words

    def test_gives_the_command_line(
        self, tiny_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = [*self.RUN, "-m", str(tiny_path)]
        assert main([*run, "--method", "nth", "--step", "3"]) == 0
        assert capsys.readouterr().out
        assert main([*run, "--step", "3"]) == 2
        assert "--step has no effect with --method full: it belongs to --method nth" in (
            capsys.readouterr().err
        )
        assert main([*run, "--method", "nth", "--step", "0"]) == 1
        assert "step is 0, expected 1 or more" in capsys.readouterr().err
        assert main([*run, "--method", "nth", "--record-selections", "file"]) == 2
        assert "--method nth attends to all" in capsys.readouterr().err

    def test_gives_the_options_of_eval(self) -> None:
        from kvarn.runtime.axes import ATTEND_AXIS

        assert ATTEND_AXIS.parsed("nth:step=5", {"budget": "1%"}) == EveryNth(5)

    def test_gives_the_python_name(self, tiny: Model) -> None:
        assert kvarn.EveryNth is EveryNth
        ids = list(range(20))
        one = tiny.context(64, kvarn.EveryNth(step=1)).prefill(ids)
        full = tiny.context(64).prefill(ids)
        assert np.abs(one - full).max() < 2e-3 * np.abs(full).max()
        assert np.abs(tiny.context(64, kvarn.EveryNth()).prefill(ids) - full).max() > 1e-2

    def test_gives_the_refusal_with_what_evicts(
        self, tiny: Model, tiny_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = "keep streaming cannot be combined with nth attention"
        with pytest.raises(KeepError, match=words):
            tiny.context(64, kvarn.EveryNth(), kvarn.Streaming(20))
        keep = ["--keep", "streaming", "--keep-budget", "20"]
        assert main([*self.RUN, "-m", str(tiny_path), "--method", "nth", *keep]) == 1
        assert words in capsys.readouterr().err
        tiny.context(64, kvarn.EveryNth(), kvarn.Streaming(64)).close()  # nothing is evicted


class Other(EveryNth):
    """Another class with the name of a method that is there."""

    name: ClassVar[str] = "full"


class Unfinished(Attend, ABC):
    """Lacks `open`."""

    name: ClassVar[str] = "unfinished"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Other, "test_registry.Other: kvarn.runtime.attend.full.Full has the name 'full'; choose"),
        (Unfinished, "test_registry.Unfinished: it lacks a name, a summary or `open`"),
        (Path, "pathlib.Path: it derives from none of Attend, Keep, Prefill, Store"),
    ],
)
def test_what_cannot_be_registered_is_told_in_words(method: type, words: str) -> None:
    before = [dict(axis) for axis in AXES]
    with pytest.raises(kvarn.KvarnError) as refused:
        kvarn.register(method)
    assert str(refused.value).startswith("registering ") and words in str(refused.value)
    assert [dict(axis) for axis in AXES] == before


def test_the_tables_of_documents_are_the_registries() -> None:
    for guide, title, methods, default in (
        ("long-texts.md", "`--method`", ATTENDS, "full"),
        ("long-texts.md", "`--keep`", KEEPS, "all"),
        ("packs.md", "KV cache", STORES, "ram"),
        ("long-texts.md", "`--prefill`", PREFILLS, "exact"),
    ):
        lines = [f"| {title} | from Python | |", "|---|---|---|"]
        for name, method in methods.items():
            note = " (the default)" if name == default else ""
            lines.append(f"| `{name}` | `kvarn.{method.__name__}` | {method.summary}{note} |")
        table = "\n".join(lines)
        text = (GUIDES / guide).read_text(encoding="utf-8")
        assert table in text, f"{guide} lacks this table of {title}:\n\n{table}\n"


def test_methods_are_exported_under_their_classes_names() -> None:
    names = [method.__name__ for axis in AXES for method in axis.values()]
    assert {*names} < {*kvarn.__all__} and {*names} < {*dir(kvarn)}
    for name in kvarn.__all__:
        assert getattr(kvarn, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        kvarn.Nothing  # noqa: B018


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("keep", KEEPS)
def test_every_pair_works_or_is_refused_in_words(tiny: Model, keep: str, attend: str) -> None:
    """Each with all choices of options; where both work, tokens are generated from slots."""
    keeping = replace(KEEPS[keep](), budget=80) if KEEPS[keep] is not KeepAll else KeepAll()
    for method in ATTENDS[attend].variants():
        short = method.shortened()
        if keeping.evicts(1000) and method.needs_all_tokens:
            words = f"keep {keep} cannot be combined with {called(short)} attention, which needs "
            with pytest.raises(KeepError, match=words) as refused:
                tiny.context(1200, short, keeping)
            assert "\n" not in str(refused.value) and "full, hash" in str(refused.value)
            continue
        with tiny.context(1200, short, keeping) as context:
            # Indexes with a centre begin with a full segment.
            n = 1030 if KEEPS[keep] is KeepAll else 100
            context.prefill([1 + i % 50 for i in range(n)])
            assert np.isfinite(context.decode(1)).all()
            assert method.selects == any(reads.steps for reads in context.stats.layers)


def test_what_attends_over_slots() -> None:
    over = {
        called(one) for method in ATTENDS.values() for one in method.variants()
        if not one.needs_all_tokens
    }  # fmt: skip
    assert over >= {"full", "topk", "topk index=flat", "hash"}
    assert "topk tail=means" not in over
