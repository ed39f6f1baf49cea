"""Unigram vocabularies and maps of characters by their definitions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.runtime.tokenizer import Tokenizer, TokenizerError
from kvarn.runtime.tokenizer.charsmap import Charsmap

from . import charsmaps

NORMAL, CONTROL, USER, UNUSED = 1, 3, 4, 5
CHARSMAP = Charsmap(np.frombuffer(charsmaps.compiled(charsmaps.RULES), np.uint8))


def texts_of(
    pieces: dict[str, tuple[float, int]], text: str, charsmap: bytes = b"", **more: Any
) -> list[str]:
    """The tokens of a text, of a vocabulary of pieces with their scores and kinds."""
    tokens = {"<unk>": (0.0, 2), **pieces}
    keys = {
        "model": "t5",
        "pre": "default",
        "tokens": list(tokens),
        "scores": [score for score, _ in tokens.values()],
        "token_type": [kind for _, kind in tokens.values()],
        "unknown_token_id": 0,
        "add_space_prefix": False,
        "remove_extra_whitespaces": False,
    }
    if charsmap:
        keys["precompiled_charsmap"] = list(charsmap)
    made = Tokenizer.from_metadata(
        {f"tokenizer.ggml.{key}": value for key, value in (keys | more).items()}
    )
    return [list(tokens)[i] for i in made.encode(text)]


@pytest.mark.parametrize("kind", [CONTROL, USER, UNUSED])
def test_an_unknown_character_costs_10_more_than_the_worst_normal_token(kind: int) -> None:
    """x and ab: -40 - 1; xa and b: -30 - 30. What other tokens score does not count."""
    pieces = {"xa": (-30.0, NORMAL), "b": (-30.0, NORMAL), "ab": (-1.0, NORMAL)}
    assert texts_of(pieces | {"other": (-1000.0, kind)}, "xab") == ["<unk>", "ab"]
    assert texts_of(pieces | {"other": (-51.0, NORMAL)}, "xab") == ["xa", "b"]


@pytest.mark.parametrize(
    ("kind", "tokens"), [(NORMAL, ["ab"]), (UNUSED, ["ab"]), (CONTROL, ["a", "b"])]
)
def test_unused_tokens_are_matched_and_control_tokens_are_not(kind: int, tokens: list[str]) -> None:
    pieces = {"a": (-1.0, NORMAL), "b": (-1.0, NORMAL), "ab": (-0.5, kind)}
    assert texts_of(pieces, "ab") == tokens


@pytest.mark.parametrize("joined", ["a▁", "a▁b", "▁a▁b"])
def test_tokens_may_reach_across_spaces(joined: str) -> None:
    pieces = dict.fromkeys(("a", "b", "▁"), (-3.0, NORMAL))
    pieces |= {"▁a": (-9.0, NORMAL), "▁b": (-9.0, NORMAL)}
    found = texts_of(pieces | {joined: (-1.0, NORMAL)}, " a b a b")
    assert found.count(joined) == 2


def test_a_text_with_a_space_may_be_replaced() -> None:
    pieces = dict.fromkeys(("a", "b", "c", "▁"), (-1.0, NORMAL))
    charsmap = charsmaps.compiled({"a b": "c"})
    assert texts_of(pieces, "a ba b", charsmap) == ["c", "c"]
    assert texts_of(pieces, "a  b", charsmap) == ["a", "▁", "▁", "b"]


def replaced(text: str) -> str:
    """The longest text of the map at each place."""
    made, at = "", 0
    while at < len(text):
        known = [one for one in charsmaps.RULES if text.startswith(one, at)]
        longest = max(known, key=len, default="")
        made += charsmaps.RULES[longest] if longest else text[at]
        at += len(longest) or 1
    return made


@given(st.text(st.sampled_from("\0aefiK\r\n\u0301\u200b１２3٣٤½的\U0001d11e")))
def test_the_longest_text_of_the_map_is_replaced(text: str) -> None:
    assert CHARSMAP.apply(text.encode()).decode() == replaced(text)


@pytest.mark.parametrize(("n_units", "n_more"), [(256, 1), (256, 0), (257, 0), (257, 3), (0, 9)])
def test_an_index_that_leaves_no_texts_is_refused(n_units: int, n_more: int) -> None:
    data = (4 * n_units).to_bytes(4, "little") + bytes(4 * 256 + n_more)
    if (n_units, n_more) == (256, 1):
        assert Charsmap(np.frombuffer(data, np.uint8)).apply(b"a") == b"a"
        return
    with pytest.raises(TokenizerError, match=f"has {len(data)} bytes.* the file is damaged"):
        Charsmap(np.frombuffer(data, np.uint8))


def test_offsets_of_large_maps_are_in_steps_of_256() -> None:
    units = np.zeros(1024, "<u4")
    units[0] = 2 << 10 | 1 << 9
    units[512 ^ ord("a")] = 1 << 10 | 1 << 9 | 1 << 8 | ord("a")
    units[512 ^ ord("a") ^ 256] = 1 << 31
    data = (4096).to_bytes(4, "little") + units.tobytes() + b"new\0"
    assert Charsmap(np.frombuffer(data, np.uint8)).apply(b"bab") == b"bnewb"


@pytest.mark.parametrize("empty", [[], np.empty(0, np.uint8), np.empty(0, np.int8)])
def test_an_empty_map_replaces_nothing(empty: object) -> None:
    """As one of no type is read from a GGUF file."""
    assert texts_of({"a": (-1.0, NORMAL)}, "aa", precompiled_charsmap=empty) == ["a", "a"]
