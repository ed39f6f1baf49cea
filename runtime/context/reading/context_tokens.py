"""The tokens that a context holds, and which of others it can read next; nothing computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ....system.spelling import spelt
from ...token_ids import TokenIds
from .prompt import ContextError, check_readable, n_shared

if TYPE_CHECKING:
    from ....models.passes.transformer import Transformer
    from ...cache import KVCache


class ContextTokens:
    """The tokens that were read.

    tell: called with a line that the user should see. Raises `ContextError` if the store holds more
    tokens than the context has room for.
    """

    def __init__(
        self, transformer: Transformer, cache: KVCache, tell: Callable[[str], None]
    ) -> None:
        self._transformer, self.cache, self._tell = transformer, cache, tell
        # Stores, encoders and evicting methods on the host work on the chunks that they know.
        self._chunk = min(transformer.max_chunk, cache.store.device.chunk)
        self.goes_beyond = False
        """Whether its user knows that it may go on beyond the training length."""
        saved = cache.store.saved
        if len(saved.tokens) > cache.most_tokens:
            raise ContextError(
                f"the pack holds {len(saved.tokens)} tokens and the context has room for "
                f"{cache.most_tokens}: use a larger {spelt('ctx')}"
            )
        read = saved.tokens  # of millions, there is no second copy
        self.tokens = read if isinstance(read, TokenIds) else TokenIds(read)
        self.of_prompt = bytearray(len(saved.tokens))
        """Of each token, 1 if it was read as part of a prompt, 0 if it was generated or filled."""
        self.of_prompt[: saved.n_prompt] = b"\1" * saved.n_prompt

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
        n = self.cache.attend.n_reusable(n, len(ids))
        seam = n < len(ids) and n % self._chunk and self.cache.has_evicted(n)
        return n if self.can_truncate(n) and not seam else 0

    def add(self, ids: Sequence[int], *, prompt: bool) -> None:
        """Count tokens, which every layer has, as read."""
        self.tokens.extend(ids)
        self.of_prompt.extend((b"\1" if prompt else b"\0") * len(ids))

    def _cut_tokens(self, n_tokens: int) -> None:
        """Count the tokens from `n_tokens` on as not read; what is known of the last one stays."""
        del self.tokens[n_tokens:], self.of_prompt[n_tokens:]

    def check(self, ids: Sequence[int]) -> None:
        """`ContextError` if `ids` cannot be read now.

        Tells once when a context goes on beyond the training length. One whose size is within it
        and that evicts may do so; of a larger size, the plan's notices have told.
        """
        config, n_held = self._transformer.config, len(self.tokens)
        check_readable(ids, n_held, config.n_vocab, self.cache.most_tokens)
        if not self.goes_beyond and n_held + len(ids) > config.n_ctx_train:
            self.goes_beyond = True
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
