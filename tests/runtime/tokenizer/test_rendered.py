"""Control tokens count where a template wrote them, and not where people did."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.runtime.tokenizer import ControlTexts, Rendered, Tokenizer

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CONTROL = ("<s>", "</s>", "<mask>", "<|endoftext|>")
# Control tokens, user-defined ones that overlap them, parts of both.
WORDS = st.sampled_from(
    [*CONTROL, "<unk>", "<|x|>", "sk>a", "  <ud>", "<mas", "k>", "<", "|>", "the", " ", "\n", "é"]
)
TEXTS = st.lists(WORDS, max_size=6).map("".join)
TURNS = st.lists(st.tuples(st.sampled_from(CONTROL), TEXTS), max_size=4)


@pytest.fixture(scope="module", params=["spm", "bpe"])
def tokenizer(request: pytest.FixtureRequest, golden: dict[str, Any]) -> Tokenizer:
    pre = {"tokenizer.ggml.pre": "llama-bpe"} if request.param == "bpe" else {}
    return Tokenizer.from_metadata(golden["vocabularies"][request.param] | pre)


@RELAXED
@given(TURNS)
def test_what_is_added_is_text(tokenizer: Tokenizer, turns: list[tuple[str, str]]) -> None:
    # Oracle: the template's tokens by their ids, and llama.cpp's ids of each text between them.
    rendered, expected = Rendered(), []
    for token, text in turns:
        rendered = rendered + Rendered(token) + text
        expected += [tokenizer.id_of(token), *tokenizer.encode(text)]
    assert rendered == "".join(map("".join, turns))
    assert tokenizer.encode(rendered, special=True) == expected
    assert tokenizer.encode(rendered) == tokenizer.encode(str(rendered))


@RELAXED
@given(TEXTS)
def test_without_quotes_it_is_plain_special_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(Rendered(text), special=True)
    assert ids == tokenizer.encode(text, special=True)
    quoted = Rendered(text, [(0, len(text))] if text else [])
    assert tokenizer.encode(quoted, special=True) == tokenizer.encode(text)


def test_one_quoted_character_is_enough(tokenizer: Tokenizer) -> None:
    mask, plain = tokenizer.id_of("<mask>"), tokenizer.encode("<mask>")
    assert plain != [mask]
    for i in range(6):
        assert tokenizer.encode(Rendered("<mask>", [(i, i + 1)]), special=True) == plain
    around = Rendered("a<mask>a", [(0, 1), (7, 8)])
    assert mask in tokenizer.encode(around, special=True)
    assert tokenizer.encode(Rendered("<ma") + "s" + Rendered("k>"), special=True) == plain
    assert tokenizer.encode(Rendered("<mas") + "" + Rendered("k>"), special=True) == [mask]


def test_text_before_and_after_is_quoted() -> None:
    text = "ab" + Rendered("<s>c", [(3, 4)]) + "de"
    assert (text, text.quoted) == ("ab<s>cde", ((0, 2), (5, 6), (6, 8)))
    assert type(text[1:]) is str


def test_bytes_that_are_not_utf8_move_no_quote(tokenizer: Tokenizer) -> None:
    mask = tokenizer.id_of("<mask>")
    for odd in ("\udcc3\udca9", "\udcff", "\ud800"):
        quoted = f"{odd}<mask>{odd}"
        text = Rendered(f"{odd}<mask>") + quoted + Rendered("<mask>")
        parts = [*tokenizer.encode(odd), mask, *tokenizer.encode(quoted), mask]
        assert tokenizer.encode(text, special=True) == parts


def test_white_space_is_absorbed_beside_quotes(golden: dict[str, Any]) -> None:
    named = golden["vocabularies"]["spm"] | {"general.name": "phi-3"}
    phi3 = Tokenizer.from_metadata(named)
    expected = [phi3.id_of("<mask>"), *phi3.encode("a")]
    assert phi3.encode(Rendered("<mask>") + " \na", special=True) == expected
    assert phi3.encode(Rendered("<mask> \na"), special=True) == expected


def test_it_continues_what_is_quoted_alike() -> None:
    before = Rendered("a<s>", [(0, 1)])
    assert (before + "b").continues(before)
    assert before.continues(Rendered())
    assert not Rendered("a<s>b").continues(before)
    assert not Rendered("a<s>b", [(0, 4)]).continues(before)
    assert not Rendered("a<").continues(before)


def test_control_texts_and_what_begins_one(tokenizer: Tokenizer) -> None:
    assert set(tokenizer.control.find("x<|endoftext|><s><|x|></s")) == {"<|endoftext|>", "<s>"}
    assert tokenizer.control.find("  <ud> sk>a") == []
    control = ControlTexts(["<|im_start|>", "<|im_end|>", "<s>", "<s>x"])
    expected = {"a<|im_": 5, "a<": 1, "<|im_end|>": 0, "<s>": 3, "<s>x": 0, "<<|": 2, "": 0, "x": 0}
    assert {text: control.partial_length(text) for text in expected} == expected
    assert control.find("<s>x") == ["<s>x", "<s>"]
    assert ControlTexts().partial_length("<") == 0
    assert ControlTexts().find("<") == []
