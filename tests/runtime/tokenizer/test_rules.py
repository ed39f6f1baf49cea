"""Rules in the small: special tokens, spaces, invalid bytes, pieces, words, merges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.runtime.tokenizer import Attr, Tokenizer
from kvarn.runtime.tokenizer.bpe import decode_lenient
from kvarn.runtime.tokenizer.merge import merge
from kvarn.runtime.tokenizer.pretokenizers import PRE_TOKENIZERS
from kvarn.runtime.tokenizer.split import split_words
from kvarn.runtime.tokenizer.unicode_table import general_class

from . import tiny_vocabs

# Examples load or encode with whole vocabularies: on a busy machine some take long.
RELAXED = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


_GGML = "tokenizer.ggml."
# Letters that meet in tiny vocabularies, characters of all lengths, spaces of all kinds.
TEXTS = st.text(
    st.sampled_from(list("abtheZ019 ▁'s,.!\n\r\t\x0b\x85\u3000é你好한ไह\u094d😀\u0301½"))
) | (st.text(st.characters(exclude_categories=["Cs"])))


def tokenizer(golden: dict[str, Any], base: str, **changes: Any) -> Tokenizer:
    changes = {_GGML + key: value for key, value in changes.items()}
    return Tokenizer.from_metadata(golden["vocabularies"][base] | changes)


@pytest.fixture(scope="module")
def spm(golden: dict[str, Any]) -> Tokenizer:
    return tokenizer(golden, "spm")


@pytest.fixture(scope="module")
def bpe(golden: dict[str, Any]) -> Tokenizer:
    return tokenizer(golden, "bpe", pre="llama-bpe")


def test_control_tokens_count_where_asked(spm: Tokenizer) -> None:
    end = spm.id_of("<|endoftext|>")
    assert spm.encode("<|endoftext|>", special=True) == [end]
    assert end not in spm.encode("<|endoftext|>")
    assert spm.decode([end]) == "" and spm.decode([end], special=True) == "<|endoftext|>"
    assert spm.attr(end) == Attr.CONTROL and end == spm.roles["eot"]
    assert spm.eog_ids >= {end, spm.eos_id}


def test_user_defined_tokens_always_count(spm: Tokenizer, bpe: Tokenizer) -> None:
    for each in (spm, bpe):
        token = each.id_of("<|x|>")
        assert token in each.encode("a<|x|>b") and "<|x|>" in each.decode([token])
        assert each.attr(token) == Attr.USER_DEFINED


def test_many_special_tokens_take_linear_time(bpe: Tokenizer) -> None:
    token = bpe.id_of("<|x|>")
    assert bpe.encode("<|x|>" * 50_000) == [token] * 50_000


def test_bos_and_eos_are_what_the_file_asks_for(golden: dict[str, Any]) -> None:
    both = tokenizer(golden, "bpe", add_bos_token=True, add_eos_token=True)
    assert both.encode("", bos=True) == [both.bos_id, both.eos_id]
    assert both.encode("") == []
    neither = tokenizer(golden, "bpe", pre="qwen2")
    assert neither.encode("", bos=True) == []
    bert = tokenizer(golden, "bert")
    assert bert.encode("", bos=True) == [101, 102]


def test_a_space_is_put_before_and_taken_off(golden: dict[str, Any], spm: Tokenizer) -> None:
    bare = tokenizer(golden, "spm", add_space_prefix=False)
    assert spm.encode("the") == bare.encode(" the")
    assert spm.decode(spm.encode("the")) == "the" and bare.decode(bare.encode(" the")) == " the"
    assert spm.decode(spm.encode("  the")) == "  the"
    assert "".join(map(spm.stream().push, spm.encode("the"))) == " the"


def test_extra_spaces_go_where_the_file_says_so(golden: dict[str, Any]) -> None:
    tidy = tokenizer(golden, "spm", remove_extra_whitespaces=True)
    assert tidy.encode("  the   a ") == tidy.encode("the a")
    assert tidy.encode("   ") == []
    assert tidy.encode(b"  \xff   a ") == tidy.encode(b"\xff a")


def test_bytes_without_tokens_become_one_unknown() -> None:
    metadata = tiny_vocabs.sentencepiece(60, byte_tokens=False)
    narrow = Tokenizer.from_metadata(metadata)
    assert narrow.encode("\u2603\u2604") == [narrow.id_of("▁"), narrow.roles["unk"]]
    assert narrow.roles["unk"] == 0


@RELAXED
@given(TEXTS)
def test_chunks_give_the_ids_of_the_whole(spm: Tokenizer, text: str) -> None:
    engine = spm._engine  # encode_raw merges the whole text as one piece
    assert engine.encode(text) == engine.encode_raw(text.encode())


@RELAXED
@given(TEXTS.filter(lambda text: "▁" not in text))
def test_decoding_gives_the_text_back(spm: Tokenizer, bpe: Tokenizer, text: str) -> None:
    for each in (spm, bpe):
        assert each.decode(each.encode(text)) == text


@RELAXED
@given(st.binary())
def test_any_bytes_encode(spm: Tokenizer, bpe: Tokenizer, raw: bytes) -> None:
    mark = "▁".encode()  # bytes that announce more than they bring can swallow a space's mark
    decoded = spm.decode_bytes(spm.encode(raw))
    assert decoded.replace(b" ", mark) == raw.replace(b" ", mark)
    assert bpe.decode_bytes(bpe.encode(raw)) == decode_lenient(raw).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xe4\xbd", "\ufffd\ufffd"),
        (b"\xc0\x80", "\0"),
        (b"\xed\xa0\x80", "\ud800"),
        (b"\xf4\x90\x80\x80.", "\ufffd."),
        ("é你😀".encode(), "é你😀"),
    ],
)
def test_lenient_decoding(raw: bytes, text: str) -> None:
    assert decode_lenient(raw) == text


def test_lone_surrogates_are_their_bytes(bpe: Tokenizer) -> None:
    assert bpe.encode("a\ud800b") == bpe.encode(b"a\xed\xa0\x80b")
    assert bpe.encode("a\udcffb") == bpe.encode(b"a\xffb")


@RELAXED
@given(TEXTS)
def test_words_are_the_text(text: str) -> None:
    for rules in set(PRE_TOKENIZERS.values()):
        assert "".join(split_words(text, rules.steps)) == text


def test_digits_group_from_the_right() -> None:
    rules = PRE_TOKENIZERS["tiny_aya"]
    assert split_words("1234567", rules.steps) == ["1", "234", "567"]
    assert split_words("ab12 999", rules.steps) == ["ab", "12", " ", "999"]


def test_characters_newer_than_the_interpreter() -> None:
    # Unicode 15.0 and 15.1: Kawi letter, Kawi digit, ideographic description character, unassigned.
    assert [general_class(c) for c in "\U00011f04\U00011f50\u2ffc\u0378"] == ["L", "N", "S", "U"]


def _naive_merge(symbols: list[str], ranks: dict[str, int]) -> list[str]:
    """Best pair first, leftmost of equals, by looking at all pairs each time."""
    while True:
        pairs = [(ranks.get(a + b), i) for i, (a, b) in enumerate(pairwise(symbols))]
        known = [(rank, i) for rank, i in pairs if rank is not None]
        if not known:
            return symbols
        _, i = min(known)
        symbols = [*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :]]


RANKS = st.dictionaries(st.text("ab", min_size=2, max_size=4), st.integers(0, 3))


@RELAXED
@given(st.text("ab", max_size=24) | st.text("ab", min_size=45, max_size=80), RANKS)
def test_merge_is_the_greedy_merge(text: str, ranks: dict[str, int]) -> None:
    merged = merge(list(text), lambda a, b: ranks.get(a + b))
    assert merged == _naive_merge(list(text), ranks)


def _gpt_oss_tokens() -> Iterator[str]:
    yield from ("<|start|>", "<|end|>", "<|message|>", "<|return|>", "<|call|>", "<|channel|>")


def test_harmony_ends() -> None:
    tokens = [*"abc", *_gpt_oss_tokens()]
    oss = Tokenizer.from_metadata(
        {
            _GGML + "model": "gpt2",
            _GGML + "pre": "gpt-4o",
            _GGML + "tokens": tokens,
            _GGML + "token_type": [1] * 3 + [3] * 6,
            _GGML + "merges": [],
            _GGML + "eos_token_id": tokens.index("<|return|>"),
        }
    )
    assert {oss.text_of(i) for i in oss.eog_ids} == {"<|return|>", "<|call|>"}
    assert oss.decode(range(3, 9)) == "<|start|><|end|><|message|><|channel|>"


def test_a_normal_end_mark_where_turns_end_otherwise() -> None:
    tokens = ["a", "</s>", "<|tool_response>", "<turn|>"]
    gemma = Tokenizer.from_metadata(
        {_GGML + "model": "gemma4", _GGML + "tokens": tokens, _GGML + "merges": []}
    )
    assert {gemma.text_of(i) for i in gemma.eog_ids} == {"<|tool_response>", "<turn|>"}
    assert gemma.attr(1) == Attr.NORMAL and gemma.bos_id is None
