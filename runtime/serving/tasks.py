"""What the engine does for requests, step by step."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..chat.replies import Logprob
from ..context.generation import before_stop
from ..lens.passages import Lens, Source
from ..stats import Clock
from .library import Lease, Library
from .protocol import Done, Finish, Pieces, Progress
from .refusal import prompt_too_long
from .requests.contexts import refuse_bad_pack
from .requests.lens import lens_steps

if TYPE_CHECKING:
    import msgspec

    from ..context import Context
    from ..context.generation import Generation
    from ..context.planning.request import ContextRequest
    from ..context.reading.reading import Reading as PromptReading
    from ..draft import Draft
    from .drafts import Drafts
    from .flags import Flags
    from .protocol import Slotted
    from .requests.preparing import PreparedRequest

Send = Callable[["msgspec.Struct"], None]


class Task(ABC):
    """One request that the engine works on: first it reads, in slices, then it may decode.

    Its methods run on the engine thread.
    """

    def __init__(self, asked: Slotted, flags: Flags, send: Send) -> None:
        self.id, self.slot, self._flags, self._send = asked.id, asked.slot, flags, send

    @property
    def is_cancelled(self) -> bool:
        return self._flags.is_ended(self.slot)

    def cancel(self) -> None:
        """End the task, and a pass that works for it alone."""
        self._flags.end(self.slot)

    @property
    def is_paused(self) -> bool:
        """Whether nobody reads its answer now."""
        return self._flags.is_paused(self.slot)

    @abstractmethod
    def open(self) -> None:
        """Get what it needs; may take memory."""

    @property
    @abstractmethod
    def reads(self) -> bool:
        """Whether a part of its prompt is left to be read."""

    @abstractmethod
    def read(self, n_tokens: int) -> int:
        """Read at most so many tokens more; returns how many it has read."""

    @property
    @abstractmethod
    def finish(self) -> Finish | None:
        """How it has ended; None if it has not."""

    @abstractmethod
    def close(self, finish: Finish | None) -> None:
        """Give back what it has, and say how it ended; finish: None where the request is refused,
        which the caller says."""


class AnswerTask(Task):
    """Reads a prompt and generates. on_end: called with an answer that has ended, by itself, at a
    stop string or at a limit, and with the ids of its prompt and its text. drafts: what guesses its
    tokens, which reads the prompt, too.

    next_token: the one to be read next, with the guesses `next_draft` after it; None: there is none
    yet, or the answer has ended. draft_room: the most guesses, which the scheduler sets.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        library: Library,
        flags: Flags,
        send: Send,
        on_end: Callable[[PreparedRequest, Generation, list[int]], None],
        drafts: Drafts | None = None,
    ) -> None:
        super().__init__(prepared.asked, flags, send)
        self._prepared, self._library, self._on_end = prepared, library, on_end
        self._drafts, self._asked, self._seconds = drafts, prepared.asked, [0.0, 0.0]
        self._draft: Draft | None = None
        self._lease: Lease | None = None
        self._generation: Generation | None = None
        self._reading: PromptReading | None = None
        self._n_prompt = self._n_cached = self._n_pack = 0
        self._tokens: list[int] = []
        self._logprobs: list[Logprob] = []
        self._lens: Lens | None = None
        self._weighing: Generator[None, int | None, Lens] | None = None
        self.next_token: int | None = None
        self.next_draft: Sequence[int] = ()
        self.draft_room = 0

    def open(self) -> None:
        prepared = self._prepared
        ids: Sequence[int] = prepared.ids
        with refuse_bad_pack(prepared.pack):
            if prepared.pack is not None:
                pack = self._library.include(prepared.pack)
                ids, self._n_pack = [*pack, *ids], len(pack)
                if len(ids) > prepared.n_ctx:
                    raise prompt_too_long(len(ids), prepared.n_ctx)
            self._lease = self._library.open(ids, prepared.request, prepared.n_ctx, prepared.pack)
        self.context.stop_at(self._flags.address(self.slot))
        self._reading = self.context.reading(ids[self._lease.cached :])
        self._n_cached, self._n_prompt = self._lease.cached, len(ids)
        if self._drafts is not None:
            self._draft = self._drafts.open(self.context, ids)
        self._generation = self.context.generation(
            (), self._asked.max_tokens, prepared.sampler, prepared.stop, self._draft
        )  # its constraint is compiled while the prompt is read
        if self._draft is not None:
            self._draft.stop_at(self._flags.address(self.slot))
        self._text = self._generation.text(self._asked.special)
        self._send_progress()

    @property
    def reads(self) -> bool:
        return self._reading is not None or self._weighs

    @property
    def _weighs(self) -> bool:
        """Whether the answer has ended, and what it attended to is still to be told."""
        has_ended = self._generation is not None and self._generation.finish is not None
        return has_ended and self._prepared.neutral is not None and self._lens is None

    def read(self, n_tokens: int) -> int:
        if self._reading is None:
            self._weigh(n_tokens)
            return 0
        clock, reading, draft = Clock(), self._reading, self._draft
        before, is_read = reading.done, reading.done == reading.n_tokens
        if not is_read:
            is_read = reading.step(n_tokens) and draft is None
        elif draft is not None:
            is_read = draft.read_some(self.context, n_tokens)
        self._seconds[0] += sum(clock.read())
        self._send_progress()
        if is_read:
            self._reading = None
            self._begin()
        return reading.done - before

    @property
    def is_settled(self) -> bool:
        """Whether it can decode, and end, while the prompt of another one is paused."""
        return not self.reads and self.context.reader.is_settled

    def _weigh(self, n_tokens: int) -> None:
        """A step towards the lens."""
        prepared, lease, context = self._prepared, self._lease, self.context
        assert lease is not None and prepared.neutral is not None
        if prepared.request.keep.evicts(prepared.n_ctx):
            self._lens = Lens(note="tokens were evicted, so that nothing can be weighed")
            return
        if self._weighing is None:
            self._send_rest()
            tokens = self._prompt_and_answer(context)
            neutral = [*tokens[: self._n_pack], *prepared.neutral]
            sources = [Source(0, self._n_pack)] if prepared.pack else prepared.sources
            open_context = partial(self._open_read_only, lease)
            self._weighing = lens_steps(
                open_context, prepared.request, tokens, neutral, sources, prepared.tokenizer
            )
            n_tokens = 0  # of what only begins
        try:
            self._weighing.send(n_tokens or None)
        except StopIteration as end:
            self._lens = end.value

    def _open_read_only(self, lease: Lease, request: ContextRequest) -> Context:
        context = self._library.open_read_only(lease, request)
        context.stop_at(self._flags.address(self.slot))
        return context

    @property
    def context(self) -> Context:
        """The context of an open task."""
        assert self._lease is not None
        return self._lease.context

    def _begin(self) -> None:
        """The prompt is read: sample the first token."""
        prepared = self._prepared
        if self._asked.echo:
            text = prepared.tokenizer.decode(prepared.ids, special=self._asked.special)
            self._send(Pieces(self.id, text, list(prepared.ids)))
        assert self._generation is not None
        self._began = time.perf_counter()
        if self._generation.begin():
            self.sample()

    def sample(self) -> None:
        """Choose the next token and send its text."""
        generation, self.next_token = self._generation, None
        assert generation is not None
        token = generation.sample()
        if token is None:
            return
        self._tokens.append(token)
        if "n_probs" in self._asked.sampling:
            self._logprobs.append(Logprob.of(generation, token))
        if text := self._text.push(token):
            self._send_text(text)
        if self._text.stop:
            generation.finish = "stop"
        elif generation.goes_on():
            self.next_token, self.next_draft = token, generation.guess(token, self.draft_room)
        self._seconds[1] = time.perf_counter() - self._began

    def _send_text(self, text: str) -> None:
        self._send(Pieces(self.id, text, self._tokens, self._logprobs))
        self._tokens, self._logprobs = [], []

    def _send_progress(self) -> None:
        n_read = 0 if self._reading is None else self._reading.done
        self._send(Progress(self.id, self._n_cached + n_read, self._n_prompt, self._n_cached))

    def close(self, finish: Finish | None) -> None:
        if self._weighing is not None:
            self._weighing.close()
        if self._drafts is not None and self._draft is not None:
            self._drafts.release(self._draft)
            self._draft = None
        lease, self._lease = self._lease, None
        if lease is not None:
            if finish not in (None, "cancelled"):
                self._report_end(lease.context)
            self._library.release(lease, self._asked.reading.keep_in_library)
        if finish is None:
            return
        generation, stop = self._generation, ""
        if generation is not None:
            self._send_rest()
            stop = self._text.stop
            if generation.end_token is not None:
                stop = self._prepared.tokenizer.piece(generation.end_token).decode(errors="replace")
        self._send(
            Done(
                self.id,
                finish,
                self._n_prompt,
                self._n_cached,
                0 if generation is None else generation.n_tokens,
                stop,
                self._seconds[0],
                self._seconds[1],
                self._lens,
            )
        )

    def _send_rest(self) -> None:
        """Send what is left of the text of an answer that has ended."""
        if (rest := self._text.flush()) or self._tokens:
            self._send_text(rest)

    def _report_end(self, context: Context) -> None:
        generation = self._generation
        if generation is not None and generation.n_tokens and generation.last_token is not None:
            self._on_end(self._prepared, generation, self._prompt_and_answer(context))

    def _prompt_and_answer(self, context: Context) -> list[int]:
        """The ids of the prompt and of the text of an answer that has ended."""
        generation, prepared = self._generation, self._prepared
        assert generation is not None
        prompt, answer = context.tokens[: self._n_prompt], context.tokens[self._n_prompt :]
        if len(answer) < generation.n_tokens and generation.last_token is not None:
            answer.append(generation.last_token)  # which was sampled, and not read
        if generation.finish == "stop":
            answer = before_stop(prepared.tokenizer, answer, prepared.stop, self._asked.special)
        return [*prompt, *answer]

    @property
    def finish(self) -> Finish | None:
        """How the answer has ended; None if it has not."""
        generation = self._generation
        return None if generation is None or self._weighs else generation.finish
