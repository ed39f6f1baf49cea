"""What masks of free text depend on. Oracle: the definitions, over the whole text so far."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.sampling import Constraint
from kvarn.runtime.sampling.constraints.matcher import Matcher
from kvarn.runtime.sampling.constraints.triggers import TriggerWatch
from kvarn.runtime.tokenizer import load_tokenizer

TRIGGERS = ("aab", "<é>", "<c>")
PIECES = [*"a b aab xaabx <é é> aa ab < é".encode().split(), b"\xc3", b"\xa9", b"\xf0\x9d"]
OTHER, TRIGGER = len(PIECES), len(PIECES) + 1
CONTROL = {"<o>": OTHER, "<c>": TRIGGER}
TOKENIZER: Any = SimpleNamespace(piece=lambda token: PIECES[token])
TEXTS = [text.encode() for text in TRIGGERS[:2]]


def ends_of(text: bytes) -> tuple[int, ...]:
    """Of each trigger, how many bytes of its beginning, but not all, end the text."""
    return tuple(
        max(n for n in range(len(trigger)) if text.endswith(trigger[:n])) for trigger in TEXTS
    )


def open_of(text: bytes) -> bytes:
    """The bytes at the end that begin a character and go on."""
    for n in (3, 2, 1):
        tail = text[-n:]
        for more in (b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\x90\x80\x80"):
            try:
                if len(tail) == n and len((tail + more).decode()) == 1:
                    return tail
            except UnicodeDecodeError:
                continue
    return b""


@given(st.lists(st.integers(0, TRIGGER), max_size=12))
def test_keys_are_those_of_the_whole_text(tokens: list[int]) -> None:
    """No trigger, and no character, reaches across a control token."""
    watch, text, has_come = TriggerWatch(TRIGGERS, TOKENIZER, CONTROL), b"", False
    for token in tokens:
        watch.push(token)
        has_come |= token == TRIGGER
        text = b"" if token >= OTHER else text + PIECES[token]
        has_come |= any(trigger in text for trigger in TEXTS)
        assert (watch.key is None) == has_come
        if watch.key is not None:
            assert watch.key == (ends_of(text), open_of(text))


def test_without_triggers_nothing_is_awaited() -> None:
    assert TriggerWatch((), TOKENIZER, CONTROL).key is None


def test_copies_await_a_trigger_by_themselves() -> None:
    """Or one would keep its masks under the text of the other."""
    tokenizer = load_tokenizer(default_model_path())
    matcher = Matcher(Constraint("regex", "[0-9]", ("aab",)), tokenizer)
    logits = np.zeros(tokenizer.n_vocab, np.float32)
    before = matcher.allowed(logits).ids, matcher._trigger.key
    other = matcher.copy()
    for token in tokenizer.encode("aab"):
        other.accept(token)
    assert other._trigger.key is None and matcher._trigger.key == before[1]
    np.testing.assert_array_equal(matcher.allowed(logits).ids, before[0])
