"""Sequences of tokens in a radix tree, and which of them has the longest common beginning with
another one.

    ""─┬─ the system prompt ─┬─ question A, answer A     (entry 1)
       │                     └─ question B, answer B ─┬─ (entry 2 ends here)
       │                                              └─ question C (entry 3)
       └─ another text                               (entry 4)

Tokens are uint32 arrays, each kept once. A search compares arrays: 100,000 tokens take 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
E = TypeVar("E")


@dataclass(eq=False)
class _Node(Generic[E]):
    """tokens: between the parent's end and this one's. entries: those that end here."""

    tokens: U32
    parent: _Node[E] | None
    children: dict[int, _Node[E]] = field(default_factory=dict)
    entries: list[E] = field(default_factory=list)

    def below(self) -> Iterator[E]:
        """The entries that end here or in a node below."""
        nodes = [self]
        while nodes:
            node = nodes.pop()
            yield from node.entries
            nodes.extend(node.children.values())


@dataclass(frozen=True)
class Match(Generic[E]):
    """n_tokens: of the longest common beginning. node: where it ends, or the first one after."""

    n_tokens: int
    _node: _Node[E]
    _ends_here: bool

    @property
    def ending(self) -> list[E]:
        """The entries that have just these tokens."""
        return self._node.entries if self._ends_here else []

    def entries(self) -> Iterator[E]:
        """All entries that begin with these tokens."""
        return self._node.below()


class TokenTree(Generic[E]):
    """Entries (any objects) by their tokens."""

    def __init__(self) -> None:
        self._root: _Node[E] = _Node(np.empty(0, np.uint32), None)
        self._nodes: dict[E, _Node[E]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def longest(self, tokens: U32) -> Match[E]:
        """The longest beginning of `tokens` that some entry has."""
        node, done = self._root, 0
        while (child := self._child(node, tokens, done)) is not None:
            n = n_equal(child.tokens, tokens[done : done + len(child.tokens)])
            done += n
            if n < len(child.tokens):
                return Match(done, child, False)
            node = child
        return Match(done, node, True)

    def tokens_of(self, entry: E) -> U32:
        """The tokens of an entry that is there."""
        node: _Node[E] | None = self._nodes[entry]
        parts = []
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        return np.concatenate(parts[::-1])

    def insert(self, tokens: U32, entry: E) -> None:
        """Add an entry; one that was there has new tokens."""
        self.remove(entry)
        match = self.longest(tokens)
        node = match._node
        if not match._ends_here:
            node = self._split(node, match.n_tokens - self._start(node))
        if match.n_tokens < len(tokens):
            rest = tokens[match.n_tokens :].copy()
            node.children[int(rest[0])] = node = _Node(rest, node)
        node.entries.append(entry)
        self._nodes[entry] = node

    def remove(self, entry: E) -> None:
        """Remove an entry, if it is there."""
        node: _Node[E] | None = self._nodes.pop(entry, None)
        if node is None:
            return
        node.entries.remove(entry)
        while node is not None and node.parent is not None and not node.entries:
            parent = node.parent
            if not node.children:
                del parent.children[int(node.tokens[0])]
            elif len(node.children) == 1:
                (child,) = node.children.values()
                child.tokens, child.parent = np.concatenate([node.tokens, child.tokens]), parent
                parent.children[int(child.tokens[0])] = child
            else:
                return
            node = parent

    def _child(self, node: _Node[E], tokens: U32, done: int) -> _Node[E] | None:
        return node.children.get(int(tokens[done])) if done < len(tokens) else None

    def _start(self, node: _Node[E]) -> int:
        """How many tokens come before those of a node."""
        n, above = 0, node.parent
        while above is not None:
            n, above = n + len(above.tokens), above.parent
        return n

    def _split(self, node: _Node[E], n: int) -> _Node[E]:
        """Give the first `n` tokens of a node to a new one above it; returns that."""
        parent = node.parent
        assert parent is not None
        upper: _Node[E] = _Node(node.tokens[:n].copy(), parent)
        parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.parent = node.tokens[n:].copy(), upper
        upper.children[int(node.tokens[0])] = node
        return upper


def n_equal(a: U32, b: U32) -> int:
    """How many first items two arrays share."""
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    first = int(different.argmax()) if n else 0
    return first if n and different[first] else n
