"""A context: the tokens a model has read, their KV cache, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from ...jit import forks
from ...ops.arrays import F32
from ..cache import Axes, close_on_error, open_cache
from ..engine import on_engine
from ..methods import called
from ..stats import Clock, Stats
from .cache_access import CacheAccess
from .closed import Closed
from .filling import fill
from .generation import Generation
from .mark import Mark, mark, return_to
from .reading.prompt import checked_ids, n_shared, prompt_ids
from .reading.reading import Reading
from .reading.token_reader import TokenReader
from .saving import Saving

if TYPE_CHECKING:
    from ..draft import Draft
    from ..methods import Progress
    from ..model import Model
    from ..sampling import Sampler
    from .planning.plan import ContextPlan


class Context(CacheAccess):
    """Tokens with their KV cache; reads more tokens, generates, and can be cut back.

    Made by `Model.context`. One context is used by one caller at a time; contexts of one model
    share its weights, and all of them compute on the one engine thread.

    On a store that saves, it begins with what was saved, and saves itself at each 1,024th token of
    a prefill, or every 20 seconds, and at its end; every 64 generated tokens or every second; and
    on `close`; as a context manager it closes itself. A cut takes effect on disk with the next
    save.
    """

    n_ctx: int
    most_tokens: int
    """Tokens that can be read in all: `n_ctx`, or 2^31 - 1 where tokens are evicted."""
    stats: Stats

    def __init__(self, model: Model, plan: ContextPlan) -> None:
        forks.check()
        self.model, self.plan, self.n_ctx, placement = model, plan, plan.n_ctx, plan.placement
        chunk = min(model.transformer.max_chunk, placement.device.chunk)
        axes = Axes(placement.store, plan.keep, plan.attend, plan.prefill)
        self._cache = open_cache(model.info, plan.n_ctx, chunk, axes)
        with close_on_error(self._cache.store):
            self._reader = TokenReader(model.transformer, self._cache, model.tell)
            self._reader.goes_beyond = plan.n_ctx > model.config.n_ctx_train
            self._saving = Saving(self._cache.store, self._reader)
        self.tokens, self.most_tokens = self._reader.tokens, self._cache.most_tokens
        self.stats = Stats(
            copied_index_bytes=self._cache.store.copied_bytes,
            layers=self._cache.attend.reads,
            prompt_layers=self._cache.attend.prompt_reads,
            kept=self._cache.kept_tokens(self.tokens),
            prefill=called(plan.prefill),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Save what is not saved yet, and close the store. After that, all but `tokens` and `stats`
        raises `ContextError`; another `close` does nothing.

        After a failed save, nothing is saved: the pack keeps its last commit. Nor is it in a forked
        process: the pack is the parent's.
        """
        saving, tokens, stats = self._saving, self.tokens, self.stats
        try:
            if not forks.forked:
                on_engine(saving.close)
        finally:
            object.__setattr__(self, "__class__", ClosedContext)
            self.__dict__.clear()  # frees memory, descriptors and mappings
            self.tokens, self.stats = tokens, stats

    def commit(self) -> None:
        """Save all tokens, if the store saves; a process that opens it goes on from there.

        Raises `StoreError` if that fails; the store then keeps what it had saved before.
        """
        if self._cache.store.saves:
            on_engine(self._saving.commit)

    def stop_at(self, flag: int) -> None:
        """Make passes raise `jit.launch.launcher.Stopped` once the int64 at `flag` is not 0.

        flag: an address, for anybody to write to. The context stays as it was before the pass."""
        self._reader.stop_flag = flag

    @property
    def logits(self) -> F32:
        """Logits of the last token read, float32 (V,)."""
        known = self._reader.logits
        return on_engine(self._reader.compute_logits) if known is None else known

    def truncate(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` tokens, some of which may be read again as they were:
        see `cut_back`. `ContextError` if there are fewer, or if `can_truncate` says no."""
        self.cut_back(n_tokens, n_tokens)

    def cut_back(self, n_tokens: int, least: int = 0) -> int:
        """Forget the tokens from `n_tokens` on; returns how many stay, `least` or more.

        Fewer stay where layers with a window do not hold any more what stands before that place:
        then it is cut to a checkpoint before it, and the caller reads the others again. Up to 1,024
        tokens that this context has read are always cut exactly. Raises what `truncate` raises.
        """
        return on_engine(self._reader.cut_back, n_tokens, least)

    def can_truncate(self, n_tokens: int) -> bool:
        """Whether the context can be cut to `n_tokens` tokens: not once tokens were evicted."""
        return self._reader.can_truncate(n_tokens)

    def cut_to_shared(self, ids: Sequence[int], after: int = 0) -> int:
        """Forget the tokens from `after` on, except those that equal the beginning of `ids`;
        returns how many of `ids` stay (`n_shared`), so that the others are to be read.

        Once tokens have been evicted, no part can stay: it is 0. See `cut_back` for the rest.
        """
        shared = n_shared(ids, self.tokens[after:] if after else self.tokens)
        if not self.can_truncate(after + shared):
            shared = 0
        return self.cut_back(after + shared, after) - after

    def cut_to_prompt(self, ids: Sequence[int]) -> int:
        """Forget all tokens but those with which `ids` begins and which were read as a prompt;
        returns how many stay. Once the others are read, all is as in an empty context that has read
        `ids`, bit for bit, whatever was read or generated before."""
        kept = self.cut_back(self._reader.shared_prompt(ids))
        self._reader.begin_prompt(len(ids), anew=True)
        return kept

    def mark(self) -> Mark:
        """What the context holds now, to which `return_to` brings it back.

        Where tokens are evicted, this copies the KV cache (`n_bytes`); elsewhere only the ids and,
        once the context has gone on, what layers with a window hold there.
        """
        return mark(self._cache, self._reader)

    def return_to(self, mark: Mark) -> None:
        """Hold again what was held at the mark, bit for bit, also what has been evicted since.

        Raises `ContextError` for a mark of another context, and where no token is evicted but the
        context has been cut since and holds others.
        """
        return_to(mark, self._cache, self._reader)

    def encode(self, prompt: str | Sequence[int], *, special: bool = False) -> list[int]:
        """Ids of a prompt that follows what was read: for text, `prompt_ids`; ids are checked.
        Raises `ContextError` for anything else."""
        if not isinstance(prompt, str):
            return checked_ids(prompt)
        return prompt_ids(self.model.tokenizer, prompt, begins=not self.tokens, special=special)

    def prefill(
        self,
        prompt: str | Sequence[int],
        progress: Progress | None = None,
        *,
        special: bool = False,
    ) -> F32:
        """Read `prompt` after the tokens already there; return the last logits, float32 (V,).

        Control tokens count in what `ChatTemplate.render` gives; in other text if `special`.
        Raises `ContextError` for an empty prompt in an empty context, ids outside the vocabulary,
        bytes, and prompts longer than the room left; the context is unchanged then.
        """
        reading, is_read = self.reading(prompt, special=special), False
        while not is_read:
            is_read = reading.step()
            if progress is not None and reading.n_tokens:
                progress(reading.done, reading.n_tokens)
        return self.logits

    def reading(
        self, prompt: str | Sequence[int], slice: int | None = None, *, special: bool = False
    ) -> Reading:
        """Begin to `prefill`, up to `slice` tokens at a step. Refuses what `prefill` refuses."""
        return Reading(self, self.encode(prompt, special=special), slice)

    def fill(self, n_tokens: int, progress: Progress | None = None) -> None:
        """Go on to `n_tokens` tokens without reading them, to measure long contexts: what was read
        is repeated with noise, see `filling`. A store that saves is saved on the way.

        progress is called with (tokens done, tokens in all) after each 1,024. Raises `ContextError`
        if none were read or there is no room, `FillError` if memory has no room or tokens have been
        evicted.
        """
        fill(self._cache, self._reader, self._saving, n_tokens, progress)

    def decode(self, token: int, draft: Sequence[int] = ()) -> F32:
        """Read one generated token and return its logits, float32 (V,).

        `draft` holds guesses, at most `draft_room`, of the tokens after it. They are read in the
        same pass but are not part of the context: a `decode` of the first of them finds its logits
        ready (see `reads_ahead`); reading anything else forgets them all. On the CPU the logits of
        each are those of a pass of its own, bit for bit; on a GPU they differ by rounding.

        Raises `ContextError` for ids outside the vocabulary, a full context and long drafts.
        """
        clock = Clock()
        if self.reads_ahead(token):
            on_engine(self._reader.accept)
            self.stats.add_accepted()
        else:
            (token,), draft = checked_ids([token]), checked_ids(draft) if draft else ()
            self._reader.check_draft(token, draft)
            on_engine(self._reader.read_draft, token, draft)
            self.stats.add_draft(len(draft))
        self.decoded(clock)
        return self.logits

    def decoded(self, clock: Clock) -> None:
        """Count a token that was decoded since `clock` began, and save the context if that is due:
        for `decode` and `Batch`, which have read it."""
        self.stats.add_decode(clock)
        if self._saving.is_due(len(self.tokens)):
            self.commit()

    @property
    def draft_room(self) -> int:
        """The longest draft that `decode` takes now, 31 at most: passes stay within chunks and the
        context."""
        return self._reader.draft_room

    def reads_ahead(self, token: int) -> bool:
        """Whether `token` is the next one of the draft, so that `decode` computes nothing."""
        return self._reader.is_next_in_draft(token)

    def generate(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Iterable[str] = (),
        draft: Draft | None = None,
    ) -> Iterator[str]:
        """Read `prompt` and yield the answer in pieces of text, never half a character.

        Ends at an end-of-generation token, a stop string (not yielded; `stop` is one or some of
        them), `max_tokens` or a full context. `Generation` says what a draft changes.
        """
        return self.generation(prompt, max_tokens, sampler, stop, draft).pieces()

    def generation(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Iterable[str] = (),
        draft: Draft | None = None,
    ) -> Generation:
        """Like `generate`, as an object that also says why it ended and after how many tokens."""
        return Generation(self, prompt, max_tokens, sampler, stop, draft)

    def generate_ids(
        self,
        prompt: str | Sequence[int] = (),
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_at_eos: bool = True,
        draft: Draft | None = None,
    ) -> Iterator[int]:
        """Read `prompt` and yield the ids that follow, up to an end-of-generation token."""
        generation = self.generation(prompt, max_tokens, sampler, draft=draft)
        return generation.ids(stop_at_eos=stop_at_eos)

    def read_all_logits(self, ids: Sequence[int], first: int = 0) -> Iterator[F32]:
        """Read `ids` and yield the logits of each from number `first` on, float32 (rows, V).

        At most 32 rows at a time, so that a large vocabulary does not cost gigabytes.
        """
        ids, done = checked_ids(ids), 0
        self._reader.check(ids)
        self._reader.begin_prompt(len(ids), anew=False)
        for chunk in self._reader.chunks(ids):
            done += len(chunk)
            wanted = max(0, min(len(chunk), done - first))
            hidden = on_engine(self._reader.forward, chunk, max(1, wanted)).copy()
            for row in range(0, wanted, 32):
                yield on_engine(self._reader.project, hidden[row : row + 32])


class ClosedContext(Closed, Context):
    """A context that is closed."""
