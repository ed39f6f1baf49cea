"""Messages between heads and shards: what is sent arrives, and nothing else is believed."""

import socket
import struct
import tracemalloc
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from kvarn.runtime.shards.frames import (
    ConnectionClosed,
    FrameError,
    Kind,
    Message,
    QuestionTemplate,
    receive,
    send,
)

TYPES = st.sampled_from(("u1", "<u4", "<u8", "<i8", "<f4", "<f8"))
ARRAYS = TYPES.flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_side=0, max_dims=4))
)
HEAD, ARRAY = struct.Struct("<4sBBHI"), struct.Struct("<BBH4I")
U32 = (1 << 32) - 1


def received(data: bytes, most: int = 1 << 20):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.close()
        return receive(theirs, most)


@given(st.sampled_from(Kind), st.lists(ARRAYS, max_size=8))
def test_what_is_sent_arrives(kind: Kind, arrays: list[np.ndarray]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert send(ours, kind, arrays) == sum(array.nbytes for array in arrays)
        frame = receive(theirs)
    assert frame.kind is kind and len(frame.arrays) == len(arrays)
    for found, sent in zip(frame.arrays, arrays):
        assert found.dtype == sent.dtype and found.shape == sent.shape
        assert found.tobytes() == np.ascontiguousarray(sent).tobytes()


@given(st.binary(max_size=200), st.booleans())
def test_bytes_that_are_no_message_are_refused(data: bytes, begins: bool) -> None:
    whole = b"kvsh" + data if begins else data
    try:
        frame = received(whole)
    except (FrameError, ConnectionClosed):
        return
    assert frame.n_bytes <= len(whole)


@pytest.mark.parametrize(
    ("head", "arrays", "words"),
    [
        ((b"GET ", 1, 1, 0, 4), [(0, 1, 0, 4, 0, 0, 0)], "does not speak"),
        ((b"kvsh", 99, 1, 0, 4), [(0, 1, 0, 4, 0, 0, 0)], "does not speak"),
        ((b"kvsh", 5, 9, 0, 4), [(0, 1, 0, 4, 0, 0, 0)], "does not speak"),
        ((b"kvsh", 5, 1, 0, 1 << 31), [(0, 1, 0, 1 << 31, 0, 0, 0)], "at most"),
        ((b"kvsh", 5, 1, 0, 4), [(0, 1, 0, 5, 0, 0, 0)], "other sizes"),
        ((b"kvsh", 5, 1, 0, 0), [(5, 4, 0, 1 << 31, 1 << 31, 1 << 31, 8)], "other sizes"),
        ((b"kvsh", 5, 1, 0, 0), [(5, 4, 0, 0, U32, U32, U32)], "cannot be"),
        ((b"kvsh", 5, 1, 0, 4), [(6, 1, 0, 4, 0, 0, 0)], "cannot be"),
        ((b"kvsh", 5, 1, 0, 4), [(0, 5, 0, 4, 0, 0, 0)], "cannot be"),
        ((b"kvsh", 5, 1, 0, 4), [(0, 1, 0, 4, 1, 0, 0)], "cannot be"),
    ],
)
def test_sizes_that_cannot_be_take_no_memory(head, arrays, words: str) -> None:
    data = HEAD.pack(*head) + b"".join(ARRAY.pack(*array) for array in arrays) + b"\0" * 64
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match=words):
            received(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 4097, 9000])
def test_messages_arrive_in_a_room_and_beyond_it(n: int) -> None:
    """Whether a message fits, or its end is received elsewhere."""
    ours, theirs = socket.socketpair()
    room, sent = bytearray(4096 + HEAD.size + ARRAY.size), np.arange(n, dtype=np.uint8)
    with ours, theirs:
        for _ in range(2):
            send(ours, Kind.ANSWER, [sent], seconds=5.0)
            (found,) = receive(theirs, room=room).arrays
            room[:] = bytes(len(room))  # what arrived is not in it
            np.testing.assert_array_equal(found, sent)


def test_a_message_that_something_follows_is_refused_in_a_room() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(2):
            send(ours, Kind.ANSWER, [np.zeros(3)])
        with pytest.raises(FrameError, match="before it is answered"):
            receive(theirs, room=bytearray(4096))


def test_a_message_that_nobody_takes_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        send(ours, Kind.ANSWER, [np.zeros(1 << 20)], seconds=0.05)


def test_a_message_of_which_a_part_is_taken_at_once_arrives_whole() -> None:
    numbers = np.arange(1 << 20, dtype="<u8")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = Thread(target=send, args=(ours, Kind.ANSWER, [numbers], 60.0))
        sending.start()
        (found,) = receive(theirs, numbers.nbytes).arrays
        sending.join()
    np.testing.assert_array_equal(found, numbers)


def test_a_message_that_comes_too_slowly_is_given_up() -> None:
    import time

    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        ours.sendall(b"kvsh")
        receive(theirs, deadline=time.monotonic() + 0.05)


def test_a_form_is_filled_again() -> None:
    template = QuestionTemplate(
        Kind.ROWS, [np.zeros(3, np.uint8), np.zeros((2, 3), "<f4"), np.zeros(0)]
    )
    questions = []
    for i in range(2):
        template.fill(0, bytes([i] * 3))
        template.fill(1, np.full((2, 3), i, "<f4"))
        questions.append(template.message())
    for i, question in enumerate(questions):  # which the other one has not changed
        arrays = [np.full(3, i, np.uint8), np.full((2, 3), i, "<f4"), np.zeros(0)]
        assert question == Message.of(Kind.ROWS, arrays)
    with pytest.raises(ValueError):
        template.fill(1, np.zeros(7, "<f4"))


def test_a_message_is_cut_at_its_arrays() -> None:
    arrays = [np.arange(3, dtype=np.uint8), np.arange(5.0), np.arange(2, dtype="<u4")]
    message = Message.of(Kind.ROWS, arrays)
    a, b, c = (array.tobytes() for array in arrays)
    for (first, stop), (rest, some) in {(1, 2): (a + c, b), (1, 3): (a, b + c)}.items():
        assert message.cut(first, stop) == (message.heading + rest, some)
    with pytest.raises(FrameError, match="3 arrays"):
        message.cut(1, 4)
