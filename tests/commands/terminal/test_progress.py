"""The time left of a prompt is right long before its end."""

import numpy as np
import pytest

from kvarn.commands.terminal import progress
from kvarn.commands.terminal.progress import Pace, ReadingBar, duration
from kvarn.runtime.attend.reads import LayerReads
from kvarn.runtime.stats import Stats

CHUNK, N_TOKENS = 512, 100_352


def seconds_of_chunks(a: float, b: float, noise: float, seed: int = 0) -> np.ndarray:
    """Of every chunk of a prompt whose token at depth n takes a + b n, some of them slower."""
    depths = np.arange(0, N_TOKENS, CHUNK) + CHUNK / 2
    slower = 1 + noise * np.random.default_rng(seed).standard_normal(len(depths))
    return CHUNK * (a + b * depths) * slower


@pytest.mark.parametrize("b", [0.0, 4e-9, 1e-7])
@pytest.mark.parametrize("seed", range(5))
def test_at_a_tenth_the_rest_is_known_within_a_quarter(b: float, seed: int) -> None:
    seconds = seconds_of_chunks(1e-4, b, noise=0.02, seed=seed)
    seconds[0] += 1.0  # the first chunk compiles, or waits for the disk
    pace, tenth = Pace(), len(seconds) // 10
    for i in range(tenth):
        pace.add(i * CHUNK, CHUNK, seconds[i])
    left = pace.left(tenth * CHUNK, N_TOKENS - tenth * CHUNK)
    assert left is not None
    assert left == pytest.approx(seconds[tenth:].sum(), rel=0.25)


def test_of_many_contexts_the_average_counts() -> None:
    """Each begins at its first token again, so that no chunk tells how later ones rise."""
    each = seconds_of_chunks(1e-4, 1e-7, noise=0.0)[:32]
    pace = Pace(rises=False)
    for i, seconds in enumerate([10.0, *each[1:], *each]):
        pace.add(i * CHUNK, CHUNK, seconds)
    left = pace.left(64 * CHUNK, 320 * CHUNK)
    assert left == pytest.approx(10 * each.sum(), rel=0.05)


def test_what_a_pack_holds_already_is_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens read by an earlier process cost this one nothing, but make its own cost more."""
    said: list[str] = []
    clock = iter([0.0, 100.0, 150.0, 170.0, 190.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(progress, "say", said.append)
    shown = ReadingBar("reading")
    shown.begin(500_000)
    shown(512, 2048)  # may have compiled: no pace is known yet
    shown(1024, 2048)
    shown(1536, 2048)
    assert said == [
        "reading: 512 of 2,048 tokens",
        "reading: 1,536 of 2,048 tokens, about 20 s left",
    ]


def test_time_in_which_nothing_is_read_is_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that index what was read with another method add no tokens."""
    said: list[str] = []
    clock = iter([0.0, 500.0, 600.0, 640.0, 900.0, 940.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(progress, "say", said.append)
    shown = ReadingBar("reading")
    for done in (0, 512, 1024, 1024, 1536):
        shown(done, 2048)
    assert said == [
        "reading: 512 of 2,048 tokens",
        "reading: 1,024 of 2,048 tokens, about 80 s left",
        "reading: 1,536 of 2,048 tokens, about 40 s left",
    ]


def test_the_pace_of_a_sparse_prompt_is_that_of_rows_that_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks that are read exactly before them take longer and longer."""
    said: list[str] = []
    clock = iter([0.0, 40.0, 120.0, 240.0, 280.0, 320.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(progress, "say", said.append)
    stats = Stats()
    stats.prompt_layers = [LayerReads(0), layer := LayerReads(3)]
    shown = ReadingBar("reading", 0, stats)
    shown(512, 10_240)
    shown(1024, 10_240)
    layer.steps = 512
    for done in (1536, 2048, 2560):
        shown(done, 10_240)
    assert said == [
        "reading: 512 of 10,240 tokens",
        "reading: 1,024 of 10,240 tokens",
        "reading: 1,536 of 10,240 tokens",
        "reading: 2,048 of 10,240 tokens",
        "reading: 2,560 of 10,240 tokens, about 10 min left",
    ]


def test_what_a_probe_finds_is_told_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest mean error of a layer so far."""
    said: list[str] = []
    clock = iter([0.0, 100.0, 150.0, 170.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(progress, "say", said.append)
    stats = Stats()
    stats.prompt_layers = [
        LayerReads(3, probes=2, output_error=0.25),
        LayerReads(7, probes=5, output_error=0.3),
        LayerReads(8),
    ]
    shown = ReadingBar("reading", 0, stats)
    for done in (512, 1024, 1536):
        stats.prompt_layers[0].steps = done
        shown(done, 2048)
    assert said == [
        "reading: 512 of 2,048 tokens, output error up to 0.125",
        "reading: 1,024 of 2,048 tokens, output error up to 0.125",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (180, "3 min"), (9000, "2.5 h")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
