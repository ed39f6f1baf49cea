"""What a run did and how fast."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from ..jit.kernel_cache import Counts
from .memory import human_bytes, peak_resident_bytes

if TYPE_CHECKING:
    from .attend.reads import LayerReads


class Clock:
    """Seconds since it was started, those of compiling kernels apart, and without `pause`."""

    _paused: ClassVar[tuple[float, float]] = 0.0, 0.0
    """Seconds of all pauses, and of compiling in them."""

    def __init__(self) -> None:
        paused, compiling = Clock._paused
        self._begin, self._compiling = time.perf_counter() - paused, Counts.seconds - compiling

    def read(self) -> tuple[float, float]:
        """Seconds of work, and of compiling."""
        paused, compiling_paused = Clock._paused
        compiling = Counts.seconds - compiling_paused - self._compiling
        return time.perf_counter() - paused - self._begin - compiling, compiling

    @staticmethod
    @contextmanager
    def pause() -> Iterator[None]:
        """Clocks that run already do not count the block; for the engine's thread."""
        clock = Clock()
        try:
            yield
        finally:
            work, compiling = clock.read()
            paused, compiling_paused = Clock._paused
            Clock._paused = paused + work + compiling, compiling_paused + compiling


@dataclass(frozen=True)
class KeptTokens:
    """What a context that evicts keeps of the tokens that it has read.

    tokens: those that it has read. budget: how many of them each KV head of a layer without a
    window keeps; layers: how many each layer does.
    """

    tokens: Sequence[int]
    budget: int
    layers: tuple[int, ...]

    @property
    def n_kept(self) -> int:
        """Tokens that layers without a window keep now."""
        return min(len(self.tokens), self.budget)

    def as_dict(self) -> dict[str, Any]:
        n = len(self.tokens)
        return {
            "kept_tokens": self.n_kept,
            "evicted_tokens": n - self.n_kept,
            "kept_in_layers": [min(n, size) for size in self.layers],
        }

    def __str__(self) -> str:
        n = len(self.tokens)
        return f"kept {self.n_kept} of {n} tokens, evicted {n - self.n_kept}"


@dataclass
class Stats:
    """Counters of one context; times in seconds.

    decode_seconds: all that generated tokens took, guesses included. draft_seconds: of the draft,
    its reading of prompts included. compile_seconds: kernels compiled on their first use, which no
    other time includes.
    """

    prefilled_tokens: int = 0
    prefill_seconds: float = 0.0
    decoded_tokens: int = 0
    decode_seconds: float = 0.0
    compile_seconds: float = 0.0
    draft_passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    draft_seconds: float = 0.0
    passes_seconds: float = field(default=0.0, repr=False)
    """Of `decode_seconds`, those of passes of the model."""
    copied_index_bytes: int = 0
    """Bytes of a pack's indexes that were copied to memory, because there was room."""
    layers: Sequence[LayerReads] = field(default=(), repr=False)
    """What each layer read, if the attend method chooses tokens."""
    prompt_layers: Sequence[LayerReads] = field(default=(), repr=False)
    """What each layer read of prompts, if their tokens choose what they read."""
    prefill: str = field(default="exact", repr=False)
    """How prompts are read: the method, with those of its options that are not the defaults."""
    kept: KeptTokens | None = field(default=None, repr=False)
    """What is kept of the tokens, if the context evicts."""

    def add_prefill(self, n_tokens: int, clock: Clock) -> None:
        seconds, compiling = clock.read()
        self.prefilled_tokens += n_tokens
        self.prefill_seconds += seconds
        self.compile_seconds += compiling

    def add_decode(self, clock: Clock) -> None:
        seconds, compiling = clock.read()
        self.decoded_tokens += 1
        self.decode_seconds += seconds
        self.passes_seconds += seconds
        self.compile_seconds += compiling

    def add_draft_start(self, clock: Clock) -> None:
        """Count what a draft does before its first guess."""
        seconds, compiling = clock.read()
        self.draft_seconds += seconds
        self.compile_seconds += compiling

    def add_guesses(self, clock: Clock) -> None:
        """Count what a draft does while tokens are generated."""
        decoded = self.draft_seconds
        self.add_draft_start(clock)
        self.decode_seconds += self.draft_seconds - decoded

    def add_draft(self, n_tokens: int) -> None:
        """Count a pass that read `n_tokens` drafted tokens after its own."""
        self.draft_passes += n_tokens > 0
        self.drafted_tokens += n_tokens

    def add_accepted(self) -> None:
        """Count a drafted token that was then sampled."""
        self.accepted_tokens += 1

    @property
    def draft_acceptance(self) -> float:
        """Share of the drafted tokens that were accepted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def tokens_per_draft_pass(self) -> float:
        """Tokens per pass with a draft, its own one included."""
        return 1 + self.accepted_tokens / self.draft_passes if self.draft_passes else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prefilled_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All counters and rates with the process's peak memory, for `--stats-json`."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self) if field.repr},
            "prefill": self.prefill,
            "layers": [layer.as_dict() for layer in self.layers],
            "prompt_layers": [layer.as_dict() for layer in self.prompt_layers],
            **(self.kept.as_dict() if self.kept else {}),
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "draft_acceptance": self.draft_acceptance,
            "tokens_per_draft_pass": self.tokens_per_draft_pass,
            "peak_resident_bytes": peak_resident_bytes(),
        }

    def __str__(self) -> str:
        draft = (
            f"drafted {self.drafted_tokens} tokens for {self.draft_passes} passes "
            f"in {self.draft_seconds:.2f} s, accepted "
            f"{self.accepted_tokens} ({self.draft_acceptance:.0%}, "
            f"{self.tokens_per_draft_pass:.1f} tokens a pass), "
            if self.draft_passes
            else "drafted nothing, as no draft would have paid, "
        )
        compiled = self.compile_seconds
        kernels = f"compiled kernels for {compiled:.1f} s, " if compiled else ""
        return (
            f"prefill {self.prefilled_tokens} tokens in {self.prefill_seconds:.2f} s "
            f"({self.prefill_tokens_per_second:.1f} tok/s), "
            f"decode {self.decoded_tokens} tokens in {self.decode_seconds:.2f} s "
            f"({self.decode_tokens_per_second:.1f} tok/s), {draft if self.draft_seconds else ''}"
            f"{kernels}peak memory {human_bytes(peak_resident_bytes())}{_reads_of(self.layers)}"
            f"{self._prompt_line()}{self._index_line()}"
            f"{f'; {self.kept}' if self.kept else ''}"
        )

    def _index_line(self) -> str:
        n_bytes = self.copied_index_bytes
        return f"; {human_bytes(n_bytes)} of index copied to memory" if n_bytes else ""

    def _prompt_line(self) -> str:
        """How prompts were read, unless all of them exactly."""
        reads = _reads_of(self.prompt_layers)
        return f"; prefill {self.prefill}: {reads[2:]}" if reads else ""


def _reads_of(layers: Sequence[LayerReads]) -> str:
    """What share of the tokens sparse steps read; "" if there were none."""
    stored = sum(layer.stored_tokens for layer in layers)
    if not stored:
        return ""
    share = sum(layer.attended_tokens for layer in layers) / stored
    choosing = sum(layer.index_seconds for layer in layers)
    reading = sum(layer.attention_seconds for layer in layers)
    text = (
        f"; attended to {share:.2%} of the tokens, {choosing:.2f} s to choose, "
        f"{reading:.2f} s to read"
    )
    probes = sum(layer.probes for layer in layers)
    if probes:
        covered = sum(layer.covered_mass for layer in layers) / probes
        error = sum(layer.output_error for layer in layers) / probes
        text += f", {covered:.2%} of the softmax covered, output error {error:.3f}"
    return text
