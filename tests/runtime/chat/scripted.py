"""A context that answers as a test tells it, and a vocabulary that spells a text in many ways."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvarn.runtime.context import Context

# A vocabulary whose words can be spelt in several ways, so that a model's own tokens for an
# answer need not be those that the tokenizer would choose. "<|" … "|>" are control tokens.
WORDS = [
    *dict.fromkeys("ab .\n#:|<>/UserAsitnu"),
    "ab",
    "aba",
    "b a",
    ".\n",
    "\n\n",
    "### ",
    "User",
    "<s>",
    "<|e|>",
]
SPECIAL = [WORDS.index("<s>"), WORDS.index("<|e|>")]


class LongestMatch:
    """A tokenizer that takes the longest word each time; unknown letters are dropped."""

    add_bos = True
    bos_id = SPECIAL[0]

    def encode(self, text: str, bos: bool = False, special: bool = False) -> list[int]:
        assert special and not bos
        ids = []
        words = sorted(range(len(WORDS)), key=lambda i: -len(WORDS[i]))
        while text:
            found = next((i for i in words if text.startswith(WORDS[i])), None)
            text = text[1 if found is None else len(WORDS[found]) :]
            if found is not None:
                ids.append(found)
        return ids

    def piece(self, token: int) -> bytes:
        return WORDS[token].encode()


@dataclass
class ScriptedContext:
    """A context that 'generates' given ids; the last one is never read, as in generation."""

    script: list[list[int]]
    most_tokens: int = 10_000
    tokens: list[int] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)
    tokenizer: Any = field(default_factory=LongestMatch)
    evicts: bool = False

    @property
    def model(self) -> Any:
        return SimpleNamespace(tokenizer=self.tokenizer)

    def can_truncate(self, n: int) -> bool:
        return not self.evicts or n in (0, len(self.tokens))

    def cut_back(self, n: int, least: int = 0) -> int:
        assert n <= len(self.tokens) and self.can_truncate(n)
        del self.tokens[n:]
        return n

    cut_to_shared = Context.cut_to_shared

    def prefill(self, ids: Sequence[int], progress: Any = None) -> None:
        self.tokens += ids

    def generation(self, prompt: Any, max_tokens: Any, sampler: Any, stop: Any, draft: Any) -> Any:
        assert prompt == ()
        self.seeds.append(None if sampler is None else sampler.seed)
        answer = self.script.pop(0)
        state = SimpleNamespace(finish=None, n_tokens=0)

        def pieces() -> Iterator[str]:
            for i, token in enumerate(answer):
                if i:
                    self.tokens.append(answer[i - 1])
                yield self.tokenizer.piece(token).decode()
            state.finish = "eos"

        state.pieces = pieces
        return state


def spell(ids: Sequence[int]) -> str:
    return "".join(WORDS[i] for i in ids)
