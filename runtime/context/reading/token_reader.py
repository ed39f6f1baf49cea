"""Reading tokens into a KV cache: the part of a context that computes."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from ....jit.launch.launcher import Stopped, stopping_at
from ....ops.arrays import F32
from ....system.errors import OutOfDeviceMemory
from .context_tokens import ContextTokens
from .hosted import attention_for
from .prompt import ContextError

if TYPE_CHECKING:
    from ....models.attention import Attention
    from ....models.passes.transformer import Transformer
    from ...cache import KVCache
    from ...methods import Progress


class TokenReader(ContextTokens):
    """Reads tokens; knows the logits and the hidden state of the last of them.

    Methods that compute (`forward`, `step`, `read_draft`, `accept`, `project`) run on the engine
    thread.
    """

    def __init__(
        self, transformer: Transformer, cache: KVCache, tell: Callable[[str], None]
    ) -> None:
        super().__init__(transformer, cache, tell)
        self._device = transformer.device
        self.logits: F32 | None = None
        """Of the last token; None: still to be computed from `hidden`."""
        self.hidden: F32 | None = cache.store.saved.hidden
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
        self._ensure_states()
        n_layers, until = len(self.cache.layers), time.perf_counter() + seconds
        while self._n_indexed < n_layers:
            layer = slice(self._n_indexed, self._n_indexed + 1)
            self.cache.index(len(self.tokens), layer, None)
            self._n_indexed += 1
            if time.perf_counter() >= until:
                break
        return self._n_indexed == n_layers

    def begin_prompt(self, n_tokens: int, *, anew: bool) -> None:
        """A prompt of so many tokens comes next, if the context is empty; anew: or begins with
        those that the context holds."""
        if anew or not self.tokens:
            self.cache.store.n_apart = None
            self.cache.attend.begin_prompt(n_tokens)

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

    def _rebuild_states(self) -> None:
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
            self._ensure_states()
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
        self.prepare()
        with stopping((self.stop_flag,), cache.keeps_all):
            attention = self.begin(len(ids), prompt=prompt)
            try:
                result = self._transformer_for(len(ids), prompt).forward(
                    np.asarray(ids, np.int32),
                    len(self.tokens),
                    attention,
                    cache.most_tokens,
                    n_out,
                    prompt=prompt,
                )
                hidden: F32 = self._device.get(result)
            except (Stopped, OutOfDeviceMemory):
                self.abort()
                raise
        self.end(ids, hidden[-1], prompt=prompt)
        return hidden

    def prepare(self) -> None:
        """Prepare what a pass starts from: the states after all tokens, and their index."""
        if self.cache.store.states is not None:
            self._ensure_states()
        if self._n_indexed < len(self.cache.layers):  # before the pass, so that its time is told
            self.index()

    def _ensure_states(self) -> None:
        store = self.cache.store
        if store.states is not None and not store.reaches(len(self.tokens)):
            self._rebuild_states()

    @property
    def is_settled(self) -> bool:
        """Whether the context can decode, be saved and be closed without reading tokens again."""
        is_known = self.hidden is not None or not self.tokens
        return is_known and self.cache.store.reaches(len(self.tokens))

    def begin(self, n_tokens: int, *, prompt: bool) -> Attention:
        """Begin a pass of so many tokens, for a context that is ready; returns its attention."""
        cache = self.cache
        self._known = self.logits, self.hidden
        self.logits = self.hidden = None
        self._draft.clear()
        cache.begin(len(self.tokens), n_tokens, prompt=prompt)
        return attention_for(self._device, cache, cache.store.device)

    def abort(self) -> None:
        """Give up the pass that has begun: restore the logits and hidden state of before."""
        self.logits, self.hidden = self._known

    def end(self, ids: Sequence[int], hidden: F32, *, prompt: bool) -> None:
        """End the pass that has begun, which has read `ids`; hidden: the state (D,) of the last."""
        self.cache.end(len(ids))
        self.tokens.extend(ids)  # as `add`, without a call of Python for each token
        self.of_prompt.extend((b"\1" if prompt else b"\0") * len(ids))
        self._hidden_memory[:] = hidden
        self.hidden = self._hidden_memory

    def step(self, ids: Sequence[int], want_logits: bool, *, prompt: bool = True) -> None:
        """Read a chunk, and compute the logits of its last token if wanted."""
        # Generated tokens attend one by one where the host has K and V: each with its own query.
        hidden = self.forward(ids, n_out=1 if prompt else None, prompt=prompt)
        if want_logits:
            self.logits = self.project(hidden[-1:])[0]

    def is_next_in_draft(self, token: int) -> bool:
        """Whether `token` is the next one of a draft that has been read."""
        return bool(self._draft) and self._draft[0][0] == token

    def read_draft(self, token: int, draft: Sequence[int]) -> None:
        """Read one token, and in the same pass the drafted tokens after it."""
        hidden = self.forward([token, *draft], prompt=False)
        logits = self.project(hidden, prompt=False)
        if draft:
            self.set_draft(draft, hidden, logits)
        else:
            self.logits = logits[0]

    def set_draft(self, draft: Sequence[int], hidden: F32, logits: F32) -> None:
        """Take the last of the tokens that were read as a draft; hidden (T, D) and logits (T, V) of
        the token before them, and of each."""
        if draft:
            self._cut_tokens(len(self.tokens) - len(draft))
            hidden = hidden.copy()
            self.hidden = hidden[0]
            self._draft.extend(zip(draft, logits[1:], hidden[1:]))
        self.logits = logits[0]

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
        self._transformer_for(n_rows, prompt).logits(device.put(hidden), logits)
        return device.get(logits)

    def _transformer_for(self, n_rows: int, prompt: bool) -> Transformer:
        """What computes so many rows of a prompt, or of generated tokens."""
        return self._transformer.for_few if n_rows > 1 and not prompt else self._transformer

    def compute_logits(self) -> F32:
        """Logits of the last token, float32 (V,); `ContextError` if there is none."""
        if not self.tokens:
            raise ContextError("an empty context has no logits: prefill at least one token")
        self.reread_last()
        if self.logits is None:
            assert self.hidden is not None
            self.logits = self.project(self.hidden[None])[0]
        return self.logits

    def reread_last(self) -> None:
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


_TO_THE_END = nullcontext()


def stopping(flags: Sequence[int], halfway: bool) -> AbstractContextManager[None]:
    """Stops the block by int64 at addresses (0: none) that are not 0, with `Stopped`.

    All are read before the block. While it runs, the flag that all passes share stops it between
    two phases of kernels, where it can stop `halfway`: evictions cannot be taken back, and a flag
    of one of several contexts does not stop the others.
    """
    for flag in flags:
        if flag and ctypes.c_int64.from_address(flag).value:
            raise Stopped("stopped before a pass")
    shared = flags[0] if flags.count(flags[0]) == len(flags) else 0
    return stopping_at(shared) if shared and halfway else _TO_THE_END
