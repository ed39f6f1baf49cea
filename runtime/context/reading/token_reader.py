"""Reading tokens into a KV cache: the part of a context that computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....jit.launch.launcher import Stopped
from ....ops.arrays import F32
from ....system.errors import OutOfDeviceMemory
from .hosted import attention_for
from .prompt import ContextError, check_readable, n_shared
from .stopping import stopping

if TYPE_CHECKING:
    from ....models.attention import Attention
    from ....models.transformer import Transformer
    from ...cache import KVCache
    from ...methods import Progress


class TokenReader:
    """The tokens that were read, and the logits and hidden state of the last of them.

    tell: called with a line that the user should see. Raises `ContextError` if the store holds more
    tokens than the context has room for. Methods that compute (`forward`, `step`, `read_draft`,
    `accept`, `project`) run on the engine thread.
    """

    def __init__(
        self, transformer: Transformer, cache: KVCache, tell: Callable[[str], None]
    ) -> None:
        self._transformer, self.cache, self._tell = transformer, cache, tell
        self._device, place = transformer.device, cache.store.device
        # Stores, encoders and evicting methods on the host work on the chunks that they know.
        self._chunk = min(transformer.max_chunk, place.chunk)
        self._told = False
        saved = cache.store.saved
        if len(saved.tokens) > cache.most_tokens:
            raise ContextError(
                f"the pack holds {len(saved.tokens)} tokens and the context has room for "
                f"{cache.most_tokens}: use a larger --ctx"
            )
        self.tokens: list[int] = list(saved.tokens)
        self.of_prompt = bytearray(len(saved.tokens))
        """Of each token, 1 if it was read as part of a prompt, 0 if it was generated or filled."""
        self.of_prompt[: saved.n_prompt] = b"\1" * saved.n_prompt
        self.logits: F32 | None = None
        """Of the last token; None: still to be computed from `hidden`."""
        self.hidden: F32 | None = saved.hidden
        """Of the last token, float32 (D,); None: not known."""
        self._known: tuple[F32 | None, F32 | None] = None, None
        self._hidden_memory = np.empty(transformer.config.n_embd, np.float32)
        # Drafted tokens that have been read after `tokens`, each with its logits and hidden state.
        self._draft: deque[tuple[int, F32, F32]] = deque()
        self._n_indexed = len(cache.layers) if not self.tokens else 0
        """Layers whose tokens are all indexed."""
        self.stop_flag = 0
        """Address of an int64 that stops a pass once it is not 0; 0: none."""

    def forget(self) -> None:
        """Forget the logits and hidden state of the last token, and the draft."""
        self.logits = self.hidden = None
        self._draft.clear()

    def index(self, progress: Progress | None = None) -> None:
        """Index the tokens that the attend method has not indexed; see `Context.index`."""
        self.cache.index(len(self.tokens), slice(None), progress)
        self._n_indexed = len(self.cache.layers)

    def index_some(self, seconds: float) -> bool:
        """Index one layer, and more for so many seconds; returns whether all are indexed."""
        self._have_states()
        n_layers, until = len(self.cache.layers), time.perf_counter() + seconds
        while self._n_indexed < n_layers:
            layer = slice(self._n_indexed, self._n_indexed + 1)
            self.cache.index(len(self.tokens), layer, None)
            self._n_indexed += 1
            if time.perf_counter() >= until:
                break
        return self._n_indexed == n_layers

    @property
    def n_prompt(self) -> int:
        """How many tokens, from the first on, were read as a prompt, none of them generated: their
        K and V are those of any reading of the same tokens."""
        first = self.of_prompt.find(0)
        return len(self.tokens) if first < 0 else first

    def shared_prompt(self, ids: Sequence[int]) -> int:
        """How many of the first tokens can stay: see `Context.cut_to_prompt`.

        Once tokens have been evicted, where a prompt is cut into passes makes a difference.
        """
        n = min(n_shared(ids, self.tokens), self.n_prompt)
        n = self.cache.attend.read_alike(n, len(ids))
        seam = n < len(ids) and n % self._chunk and self.cache.evicted(n)
        return n if self.can_truncate(n) and not seam else 0

    def begin_prompt(self, n_tokens: int, *, anew: bool) -> None:
        """A prompt of so many tokens comes next, if the context is empty; anew: or begins with
        those that the context holds."""
        if anew or not self.tokens:
            self.cache.store.n_apart = None
            self.cache.attend.begin_prompt(n_tokens)

    def add(self, ids: Sequence[int], *, prompt: bool) -> None:
        """Count tokens, which every layer has, as read."""
        self.tokens.extend(ids)
        self.of_prompt.extend((b"\1" if prompt else b"\0") * len(ids))

    def _cut_tokens(self, n_tokens: int) -> None:
        """Count the tokens from `n_tokens` on as not read; what is known of the last one stays."""
        del self.tokens[n_tokens:], self.of_prompt[n_tokens:]

    def check(self, ids: Sequence[int]) -> None:
        """`ContextError` if `ids` cannot be read now.

        Tells once when a context that evicts goes on beyond the training length; other contexts
        have a size, so their user knows.
        """
        config, n_held = self._transformer.config, len(self.tokens)
        check_readable(ids, n_held, config.n_vocab, self.cache.most_tokens)
        beyond = n_held + len(ids) > config.n_ctx_train
        if beyond and not self.cache.keeps_all and not self._told:
            self._told = True
            self._tell(
                f"reading beyond the {config.n_ctx_train:,} tokens that the model was trained on: "
                "its answers may get worse"
            )

    def check_draft(self, token: int, draft: Sequence[int]) -> None:
        """`ContextError` if `token` and the drafted tokens after it cannot be read now."""
        self.check([token, *draft])
        if draft and len(draft) > self.draft_room:
            raise ContextError(
                f"a draft of {len(draft)} tokens is too long: there is room for "
                f"{self.draft_room} before the end of the chunk or of the context"
            )

    @property
    def draft_room(self) -> int:
        """The longest draft: passes stay within chunks and the context, and are of few tokens.

        The last token of a chunk is read alone, as an index may change when it is there.
        """
        n = len(self.tokens)  # a drafted token must not evict any
        left = self._chunk - n % self._chunk - 1
        return max(0, min(left, self.cache.places_left(n), self._transformer.FEW) - 1)

    def chunks(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """`ids` in pieces for one pass each; read a piece before you ask for the next one."""
        done = 0
        while done < len(ids):
            size = self.next_slice(len(ids) - done)
            yield ids[done : done + size]
            done += size

    def next_slice(self, n_left: int, most: int | None = None) -> int:
        """How many of `n_left` tokens a pass reads now: `most` of them, to the end of the chunk."""
        size = min(self._chunk - len(self.tokens) % self._chunk, n_left)
        return size if most is None else min(size, most)

    def can_truncate(self, n_tokens: int) -> bool:
        """Whether the context can be cut to `n_tokens` tokens: not once tokens were evicted."""
        held = len(self.tokens)
        return n_tokens in (0, held) or not self.cache.cut_refusal(held, n_tokens)

    def cut_back(self, n_tokens: int, least: int) -> int:
        """Forget all but the first `n_tokens` tokens, or fewer (see `KVStore.go_back`); then read
        those up to `least` again, as they were read. Returns how many stay. Raises `ContextError`
        if that is not possible."""
        held = len(self.tokens)
        if not 0 <= n_tokens <= held:
            raise ContextError(f"cannot cut a context of {held} tokens to {n_tokens} tokens")
        if not self.can_truncate(n_tokens):
            raise ContextError(
                f"cannot cut a context of {held} tokens to {n_tokens}: "
                f"{self.cache.cut_refusal(held, n_tokens)}; cut it to 0 and read it again"
            )
        if n_tokens < held or (least < held and not self.cache.store.reaches(held)):
            self._go_back(n_tokens, least)
        return len(self.tokens)

    def _go_back(self, n_tokens: int, least: int) -> None:
        """Forget all but the first `n_tokens` tokens, or fewer; read those up to `least` again."""
        kept = self.cache.store.go_back(n_tokens)
        again, of_prompt = self.tokens[kept:least], self.of_prompt[kept:least]
        self._cut(kept)
        while (done := len(self.tokens) - kept) < len(again):
            first_other = of_prompt.find(not of_prompt[done], done)
            n_alike = (len(again) if first_other < 0 else first_other) - done
            chunk = next(self.chunks(again[done : done + n_alike]))
            prompt = bool(of_prompt[done])
            self.step(chunk if prompt else chunk[: 1 + self.draft_room], False, prompt=prompt)

    def _reach_end(self) -> None:
        """Compute the states after all tokens (`KVStore.states`) by reading again from older ones.

        A pack may have only older states, a pass may have been stopped, or a draft rejected. This
        cannot be stopped halfway, which would leave fewer tokens.
        """
        flag, self.stop_flag = self.stop_flag, 0
        try:
            self._go_back(len(self.tokens), len(self.tokens))
        finally:
            self.stop_flag = flag

    def end_text(self) -> None:
        """A prompt, a document or a message ends here: a cut may come back to just this place."""
        if self._draft:  # states are those after its tokens
            self._have_states()
        self.cache.store.end_text(len(self.tokens))

    def _cut(self, n_tokens: int) -> None:
        if n_tokens < len(self.tokens):
            self.forget()
            self._cut_tokens(n_tokens)

    def forward(self, ids: Sequence[int], n_out: int | None = None, *, prompt: bool = True) -> F32:
        """Read a chunk; returns the hidden states (n_out, D) of its last tokens (default: all),
        valid until the next call. Tokens count as read only once every layer has them. prompt: see
        `KVCache.begin`.

        Raises `Stopped` where `stop_flag` is set, and `OutOfDeviceMemory`; all but the draft is
        then as it was before. (Where tokens are evicted, a pass that memory ends may have evicted
        some in its first layers.)"""
        cache = self.cache
        self.get_ready()
        with stopping((self.stop_flag,), cache.keeps_all):
            attention = self.begin(len(ids), prompt=prompt)
            try:
                result = self._for(len(ids), prompt).forward(
                    np.asarray(ids, np.int32),
                    len(self.tokens),
                    attention,
                    cache.most_tokens,
                    n_out,
                    prompt=prompt,
                )
                hidden: F32 = self._device.get(result)
            except (Stopped, OutOfDeviceMemory):
                self.give_up()
                raise
        self.end(ids, hidden[-1], prompt=prompt)
        return hidden

    def get_ready(self) -> None:
        """Prepare what a pass starts from: the states after all tokens, and their index."""
        self._have_states()
        if self._n_indexed < len(self.cache.layers):  # before the pass, so that its time is told
            self.index()

    def _have_states(self) -> None:
        store = self.cache.store
        if store.states is not None and not store.reaches(len(self.tokens)):
            self._reach_end()

    def begin(self, n_tokens: int, *, prompt: bool) -> Attention:
        """Begin a pass of so many tokens, for a context that is ready; returns its attention."""
        cache = self.cache
        self._known = self.logits, self.hidden
        self.logits = self.hidden = None
        self._draft.clear()
        cache.begin(len(self.tokens), n_tokens, prompt=prompt)
        return attention_for(self._device, cache, cache.store.device)

    def give_up(self) -> None:
        """The pass that has begun does not end: know again what was known before."""
        self.logits, self.hidden = self._known

    def end(self, ids: Sequence[int], hidden: F32, *, prompt: bool) -> None:
        """The pass that has begun has read `ids`; hidden: the state (D,) of the last of them."""
        self.cache.done(len(ids))
        self.tokens.extend(ids)  # as `add`, without a call of Python for each token
        self.of_prompt.extend((b"\1" if prompt else b"\0") * len(ids))
        self._hidden_memory[:] = hidden
        self.hidden = self._hidden_memory

    def step(self, ids: Sequence[int], want_logits: bool, *, prompt: bool = True) -> None:
        """Read a chunk, and compute the logits of its last token if wanted."""
        hidden = self.forward(ids, n_out=1, prompt=prompt)
        if want_logits:
            self.logits = self.project(hidden)[0]

    def next_in_draft(self, token: int) -> bool:
        """Whether `token` is the next one of a draft that has been read."""
        return bool(self._draft) and self._draft[0][0] == token

    def read_draft(self, token: int, draft: Sequence[int]) -> None:
        """Read one token, and in the same pass the drafted tokens after it."""
        hidden = self.forward([token, *draft], prompt=False)
        if draft:
            self._cut_tokens(len(self.tokens) - len(draft))
            self.hidden, hidden = hidden[0].copy(), hidden.copy()
        logits = self.project(hidden, prompt=False)
        self.logits = logits[0]
        self._draft.extend(zip(draft, logits[1:], hidden[1:]))

    def accept(self) -> None:
        """Make the next token of the draft one of those that were read."""
        token, self.logits, self.hidden = self._draft.popleft()
        self.add([token], prompt=False)

    def project(self, hidden: F32, *, prompt: bool = True) -> F32:
        """Logits (T, V) of hidden states (T, D), of a prompt's tokens or of generated ones."""
        device, n_rows = self._device, len(hidden)
        shape = n_rows, self._transformer.config.n_vocab
        if n_rows == 1:
            return device.get(self._transformer.next_logits(hidden), np.empty(shape, np.float32))
        logits = device.memory(shape, np.float32)
        self._for(n_rows, prompt).logits(device.put(hidden), logits)
        return device.get(logits)

    def _for(self, n_rows: int, prompt: bool) -> Transformer:
        """What computes so many rows of a prompt, or of generated tokens."""
        return self._transformer.for_few if n_rows > 1 and not prompt else self._transformer

    def compute_logits(self) -> F32:
        """Logits of the last token, float32 (V,); `ContextError` if there is none."""
        if not self.tokens:
            raise ContextError("an empty context has no logits: prefill at least one token")
        self.read_last_again()
        if self.logits is None:
            assert self.hidden is not None
            self.logits = self.project(self.hidden[None])[0]
        return self.logits

    def read_last_again(self) -> None:
        """Read the last token again, as it was read, if its hidden state is unknown, as after a
        cut."""
        if self.tokens and self.hidden is None:
            last, prompt = self.tokens[-1], bool(self.of_prompt[-1])
            self._cut(len(self.tokens) - 1)
            try:
                self.step([last], True, prompt=prompt)
            except (Stopped, OutOfDeviceMemory):
                self.add([last], prompt=prompt)  # its hidden state stays unknown
                raise
