"""Metadata is decoded when asked for, exactly, and checked for its type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.runtime.gguf import GGUFError, open_gguf
from kvarn.runtime.gguf import strings as walking

from ...programs import printed
from . import gguf_bytes as made
from .gguf_bytes import ARRAY, F32, STRING, U8, U32, build, info, pair

Write = Callable[[bytes], Path]

# Short, empty, longer than one byte counts, and bytes that look like lengths of strings.
PIECES = st.one_of(
    st.binary(max_size=12),
    st.binary(min_size=250, max_size=260),
    st.sampled_from(
        [b"", bytes(7), bytes(8), bytes(30), b"\1" + bytes(7), b"\5" + bytes(7) + b"a"]
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PIECES, max_size=60),
    st.integers(1, 40),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([20, 64, 300, 1 << 16]),
    st.integers(0, 9),
)
def test_walking_and_decoding_strings(
    pieces: list[bytes], times: int, version: int, window: int, before: int
) -> None:
    pieces = pieces * times
    data = bytes(before) + b"".join(made.string(piece, version) for piece in pieces)
    n = 4 if version == 1 else 8
    at, expected = before, []
    for piece in pieces:
        expected.append(at)
        at += n + len(piece)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walking, "_WINDOW", window)
        patch.setattr(walking, "_MIN_HOPS", 2)
        patch.setattr(walking, "_MAX_HOPS", 8)
        patch.setattr(walking, "_CHUNK", 50)
        view = memoryview(data + b"\3\0\0\0\0\0\0\0abc")
        starts, end = walking.walk_strings(view, before, len(pieces), n)
        assert (starts.tolist(), end) == (expected, at)
        texts = walking.decode_strings(view, starts, end, n)
        assert [text.encode("utf-8", "surrogateescape") for text in texts] == pieces
        assert texts == [piece.decode("utf-8", "surrogateescape") for piece in pieces]
        # One byte short, or a piece too many: the last string does not end inside.
        if pieces:
            with pytest.raises(walking.BrokenString):
                walking.walk_strings(memoryview(data)[:-1], before, len(pieces), n)
        with pytest.raises(walking.BrokenString):
            walking.walk_strings(memoryview(data), before, len(pieces) + 1, n)


def test_nothing_is_decoded_before_it_is_asked_for(
    written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvarn.runtime.gguf import metadata

    decoded = []

    def spy(*args: object) -> list[str]:
        decoded.append(args)
        return walking.decode_strings(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(metadata, "decode_strings", spy)
    file = open_gguf(written(build([pair("words", ARRAY, (STRING, ["a", "ü", "c"]))])))
    assert "words" in file.metadata and list(file.metadata) == ["words"]
    assert file.metadata.entry("words").type_name == "string[3]"
    assert not decoded
    assert file.metadata.first("words", 2) == ["a", "ü"]
    assert file.metadata["words"] == ["a", "ü", "c"]
    assert file.metadata["words"] is file.metadata["words"]
    assert file.metadata.first("words", 2) == ["a", "ü"]
    assert len(decoded) == 2


def test_bytes_that_are_not_utf8_come_back(written: Write) -> None:
    raw = [b"\xff\xfe", b"caf\xc3", b"\xed\xa0\x80", b"ok"]
    file = open_gguf(written(build([pair("a", ARRAY, (STRING, raw)), pair("s", STRING, raw[1])])))
    assert [s.encode("utf-8", "surrogateescape") for s in file.metadata["a"]] == raw
    assert file.metadata["s"].encode("utf-8", "surrogateescape") == raw[1]


def test_nested_arrays(written: Write) -> None:
    content = (ARRAY, [(U8, [1, 2]), (STRING, ["x"]), (ARRAY, [(F32, [0.5])])])
    file = open_gguf(written(build([pair("n", ARRAY, content)])))
    numbers, texts, deeper = file.metadata["n"]
    assert numbers.tolist() == [1, 2]
    assert texts == ["x"]
    assert deeper[0].tolist() == [0.5]
    assert file.metadata.first("n", 1)[0].tolist() == [1, 2]


def test_get_checks_the_type(written: Write) -> None:
    pairs = [
        pair("n", U32, 7),
        pair("f", F32, 0.5),
        pair("t", made.BOOL, 1),
        pair("s", STRING, "text"),
        pair("words", ARRAY, (STRING, ["a"])),
        pair("numbers", ARRAY, (U32, [1, 2])),
    ]
    file = open_gguf(written(build(pairs)))
    assert file.get("n", int) == 7
    assert file.get("f", float) == 0.5
    whole = file.get("n", float)
    assert (whole, type(whole)) == (7.0, float)
    assert file.get("t", bool) is True
    assert file.get("s", str) == "text"
    assert file.get("words", list) == ["a"]
    assert file.get("numbers", np.ndarray).tolist() == [1, 2]
    assert file.get("missing", int, 3) == 3
    with pytest.raises(GGUFError, match="'missing': found no such key, expected a whole number"):
        file.get("missing", int)
    for key, kind in (("f", int), ("t", int), ("n", bool), ("n", str), ("numbers", list)):
        with pytest.raises(GGUFError, match=f"'{key}'"):
            file.get(key, kind, kind())
    with pytest.raises(GGUFError, match=r"'words': found string\[1\], expected an array of num"):
        file.get("words", np.ndarray)
    with pytest.raises(GGUFError, match=r"general\.architecture"):
        _ = file.architecture
    with pytest.raises(TypeError, match="kind"):
        file.get("n", dict)


@pytest.mark.parametrize(
    ("pairs", "name"),
    [
        ([pair("general.file_type", U32, 15)], "Q4_K_M"),
        ([pair("general.file_type", U32, 0)], "F32"),
        ([pair("general.file_type", U32, 1024)], "F16"),  # "guessed"
        ([pair("general.file_type", U32, 9999)], "F16"),
        ([pair("general.file_type", STRING, b"F8")], "F16"),
        ([], "F16"),
    ],
)
def test_a_file_is_of_the_type_that_it_names_or_of_its_weights(
    written: Write, pairs: list[bytes], name: str
) -> None:
    """The numbers are those of llama.cpp's `enum llama_ftype`."""
    tensors = [info("t", [8], 1), info("u", [4], 0, 32)]
    with open_gguf(written(build(pairs, tensors, bytes(64)))) as file:
        assert (file.file_type, file.weight_type) == (name, "F16")


def test_arrays_outlive_the_file(written: Write) -> None:
    path = written(
        build([pair("a", ARRAY, (U32, [5])), pair("b", U8, 1)], [info("t", [2, 1])], b"12345678")
    )
    with open_gguf(path) as file:
        array, data, tensor = file.metadata["a"], file.tensors["t"].data, file.tensors["t"]
        assert file.n_parameters == 2
        assert file.n_bytes == path.stat().st_size
        assert "1 tensors" in repr(file)
    assert array.tolist() == [5]
    assert data.tobytes() == b"12345678"
    assert not data.flags.writeable
    assert not array.flags.writeable
    file.close()
    with pytest.raises(GGUFError, match="closed"):
        _ = tensor.data
    with pytest.raises(GGUFError, match="closed"):
        file.metadata["b"]


def test_reading_needs_neither_numba_nor_gguf_py() -> None:
    code = "import sys, kvarn; kvarn.open_gguf; print({'numba', 'gguf'} & set(sys.modules))"
    assert printed(code, timeout=60).strip() == "set()"
