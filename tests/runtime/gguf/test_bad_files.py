"""Every way in which a file can be wrong has an error of its own, which names it."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.runtime.gguf import GGUFError, open_gguf, source
from kvarn.system.errors import KvarnError

from . import gguf_bytes as made
from .gguf_bytes import ARRAY, BOOL, STRING, U8, U32, build, info, pair, string

Write = Callable[[bytes], Path]
ARCH = pair("general.architecture", STRING, "llama")
DEEP = (ARRAY, [(ARRAY, [(ARRAY, [(ARRAY, [(U8, [1])])])])])


# name: (bytes, field, found, expected) of the error, each a part of it
BAD: dict[str, tuple[bytes, str, str, str]] = {
    "magic": (b"ABCD" + bytes(40), "magic", "b'ABCD'", "b'GGUF'"),
    "version 0": (b"GGUF" + bytes(40), "version", "0", "1, 2 or 3"),
    "version 4": (b"GGUF\4\0\0\0" + bytes(40), "version", "4", "1, 2 or 3"),
    "big-endian": (b"GGUF\0\0\0\3" + bytes(40), "byte order", "big-endian", "little-endian"),
    "n_tensors": (build(n_tensors=2**63), "n_tensors", "9,223,372,036,854,775,808", "at most 0"),
    "n_keys": (build(n_keys=5), "n_keys", "5", "at most 0"),
    "n_keys limit": (build(data=bytes(2_000_000), n_keys=70_000), "n_keys", "70,000", "16,384"),
    "key length": (build([string(b"x" * 65_536) + bytes(9)]), "key 0", "65,536", "65,535"),
    "key length, absurd": (build([made.count(2**64 - 1) + bytes(50)]), "key 0", "615", "at most"),
    "key not UTF-8": (build([pair(b"a\xff", U8, 1)]), "key 0", r"b'a\xff'", "UTF-8"),
    "key twice": (build([ARCH, ARCH]), "'general.architecture'", "twice", "once"),
    "value type": (build([string("k") + b"\x0d\0\0\0" + bytes(9)]), "'k': type", "13", "0 to 12"),
    "value cut": (build([string("key") + b"\x0c\0\0\0\0\0"], alignment=1), "'key'", "2", "8"),
    "string length": (
        build([string("s") + struct.pack("<IQ", STRING, 2**40)]),
        "'s': length",
        "1,099,511,627,776",
        "room",
    ),
    "array length": (
        build([string("a") + struct.pack("<IIQ", ARRAY, U32, 2**62)]),
        "'a': array length",
        "4,611,686,018,427,387,904",
        "room",
    ),
    "array type": (
        build([string("a") + struct.pack("<IIQ", ARRAY, 77, 1) + bytes(8)]),
        "'a': items: type",
        "77",
        "0 to 12",
    ),
    "string in array": (
        build([string("a") + struct.pack("<IIQQ", ARRAY, STRING, 1, 2**64 - 1)]),
        "'a': string 0 of 1",
        "18,446,744,073,709,551,615",
        "inside the file",
    ),
    "nested arrays": (build([pair("n", ARRAY, DEEP)]), "'n'", "nested 5 deep", "at most 4"),
    "alignment 0": (build([pair("general.alignment", U32, 0)]), "general.alignment", "0", "power"),
    "alignment 24": (build([pair("general.alignment", U32, 24)]), "general.al", "24", "power"),
    "alignment 4": (build([pair("general.alignment", U32, 4)]), "general.alignment", "4", "8"),
    "alignment text": (
        build([pair("general.alignment", STRING, "32")]),
        "general.alignment",
        "string",
        "a whole number",
    ),
    "tensor name": (build([], [info("x" * 65, [1])]), "tensor 0: name", "65", "64"),
    "tensor name not UTF-8": (build([], [info(b"\xc3", [1])]), "tensor 0", r"b'\xc3'", "UTF-8"),
    "tensor twice": (
        build([], [info("t", [1]), info("t", [1], 0, 32)], bytes(64)),
        "'t'",
        "twice",
        "once",
    ),
    "no dims": (build([], [info("t", [])], bytes(64)), "'t': n_dims", "0", "1 to 4"),
    "five dims": (build([], [info("t", [1] * 5)]), "'t': n_dims", "5", "1 to 4"),
    "dim 0": (
        build([], [info("t", [4, 0])], bytes(64)),
        "'t': dims",
        "(4, 0)",
        "no dimension of 0",
    ),
    "dims overflow": (
        build([], [info("t", [2**32, 2**32, 2**32, 2**32])]),
        "'t': dims",
        "bytes",
        "at most the file's",
    ),
    "broken block": (build([], [info("t", [33], 8)], bytes(99)), "'t': dims", "33", "32"),
    "type": (build([], [info("t", [1], 99)], bytes(64)), "'t': type", "99", "kvarn knows"),
    "withdrawn type": (build([], [info("t", [32], 4)], bytes(64)), "'t'", "4 (Q4_2", "kvarn knows"),
    "offset": (build([], [info("t", [1], 0, 2**64 - 32)]), "'t': data", "bytes", "at least"),
    "offset not aligned": (build([], [info("t", [1], 0, 4)], bytes(64)), "'t': offset", "4", "32"),
    "overlap": (
        build([], [info("a", [16], 0, 0), info("b", [1], 0, 32)], bytes(99)),
        "'b': offset",
        "inside tensor 'a'",
        "overlap",
    ),
    "data cut": (build([], [info("t", [64])], bytes(255)), "'t': data", "319", "at least 320"),
    "split count 0": (build([pair("split.count", U32, 0)]), "split.count", "0", "1 to"),
    "split count absurd": (build([pair("split.count", U32, 2**31)]), "split.count", "2,147", "65"),
    "split number": (
        build([pair("split.no", U32, 3), pair("split.count", U32, 2)]),
        "split.no",
        "3",
        "less than the 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes(written: Write, name: str) -> None:
    data, field, found, expected = BAD[name]
    path = written(data)
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    error = caught.value
    assert isinstance(error, KvarnError)
    assert field in error.field
    assert found in error.found
    assert expected in error.expected
    message = str(error)
    for part in (str(path), error.field, error.found, error.expected):
        assert part in message
    assert message.isprintable()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_cut_anywhere(written: Write, version: int) -> None:
    whole = made.sample(version)
    open_gguf(written(whole)).close()
    for n in range(0, len(whole), 13):
        with pytest.raises(GGUFError):
            open_gguf(written(whole[:n]))


def test_a_bool_is_0_or_1(written: Write) -> None:
    file = open_gguf(written(build([pair("b", BOOL, 7), pair("a", ARRAY, (BOOL, [1, 2]))])))
    with pytest.raises(GGUFError, match="'b': found a bool of 7, expected 0 or 1"):
        file.metadata["b"]
    with pytest.raises(GGUFError, match="'a': found a bool of 2"):
        file.metadata["a"]


@pytest.mark.parametrize(
    ("item", "count"), [(STRING, 1_310_721), (ARRAY, 20_481), (STRING, 1_310_720)]
)
def test_a_huge_file_of_nothing_keeps_nobody_busy(written: Write, item: int, count: int) -> None:
    path = written(build([string("a") + struct.pack("<IIQ", ARRAY, item, count)], alignment=1))
    os.truncate(path, 60_000_000)  # zeros, without taking the space: empty strings or arrays
    start = time.process_time()
    if count == 1_310_720:
        with open_gguf(path) as file:
            assert len(file.metadata["a"]) == count
    else:
        with pytest.raises(GGUFError, match="'a': found over 1,310,720 strings and arrays"):
            open_gguf(path)
    assert time.process_time() - start < 5


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="no such file"):
        open_gguf(tmp_path / "missing.gguf")
    with pytest.raises(GGUFError, match="not a directory"):
        (tmp_path / "file").write_bytes(b"x")
        open_gguf(tmp_path / "file" / "model.gguf")
    with pytest.raises(GGUFError, match=r"found a directory.*no \.gguf file is in it"):
        open_gguf(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(
        GGUFError, match=rf"^{tmp_path}: found a directory.*`kvarn convert {tmp_path} OUT"
    ):
        open_gguf(tmp_path)
    (tmp_path / "inside.gguf").touch()
    with pytest.raises(GGUFError, match=r"found a directory.*it holds inside\.gguf"):
        open_gguf(tmp_path)
    with pytest.raises(GGUFError, match="empty file"):
        open_gguf(tmp_path / "inside.gguf")
    with pytest.raises(GGUFError, match="null"):
        open_gguf("nul\0byte.gguf")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(GGUFError, match="symbolic links"):
        open_gguf(tmp_path / "loop")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="a pipe or device"):
        open_gguf(tmp_path / "pipe")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read every file")
def test_no_permission(written: Write) -> None:
    path = written(build([ARCH]))
    path.chmod(0)
    with pytest.raises(GGUFError, match="permission denied"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"lmgg", "before GGUF"),
        (b"PK\3\4", "PyTorch"),
        (b"version https://git-lfs", "git lfs pull"),
        (b"<!DOCTYPE html>", "web page"),
        (b"\x89PNG", "not a GGUF file"),
    ],
)
def test_other_formats_are_recognised(written: Write, start: bytes, hint: str) -> None:
    with pytest.raises(GGUFError, match=hint):
        open_gguf(written(start + bytes(64)))


def test_messages_are_one_short_printable_line(written: Write, tmp_path: Path) -> None:
    evil = "\x1b[31m\n" + "x" * 5000
    with pytest.raises(GGUFError) as caught:
        open_gguf(written(build([pair(evil, U8, 1), pair(evil, U8, 1)])))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    with pytest.raises(GGUFError) as caught:
        open_gguf(tmp_path / "new\nline.gguf")
    assert str(caught.value).isprintable()


def test_a_file_that_cannot_be_mapped(written: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(build([ARCH]))
    with monkeypatch.context() as patch:
        patch.setattr(source, "_regular_file_size", lambda path: 10_000)
        with pytest.raises(GGUFError, match="shrinking"):
            open_gguf(path)

    def no_memory(*args: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(source.mmap, "mmap", no_memory)
    with pytest.raises(GGUFError, match="found cannot allocate memory"):
        open_gguf(path)
