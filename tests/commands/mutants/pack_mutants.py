"""Packs whose checksums are right and whose contents are hostile, each known by a name."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...runtime.store.disk.sealing import Parts, read_snapshot, write_snapshot
from .folder_mutants import VALUES
from .pack_bases import KEEP_LINES, KEEPS, KV_TYPES, LINES, MODEL, READ_BY, RUN, base, evicted

WORDS = (0, 1, 31, 32, 33, 255, 1023, 1024, 16384, 32768, 65535, 0x7C00, 0xFC00, 0x7E00, 0x7BFF)
"""u16 values: limits of what names a place; as f16, infinities, NaN and the greatest number."""
FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 0.0)
IDS = (0, 511, 512, 0x7FFFFFFF, 0xFFFFFFFF)

N_CASES = 2100
Command = Callable[[Path], list[str]]
Case = tuple[str, str, Callable[[Path], tuple[Path, int]], list[Command]]
"""Kind of the sound pack, name, what writes the hostile one into a folder (its path and bytes), and
the command lines to try."""
Spoiled = tuple[str, str, Callable[[Path], None], list[Command]]


def cases() -> Iterator[Case]:
    """Hostile packs, the same each time; every third has K and V in f16."""
    makers = (*[_segment] * 8, *[_small] * 3, *[_snapshot] * 3)
    for number in range(N_CASES):
        source = random.Random(number)
        maker = source.choice(makers)
        kind, name, write, lines = maker(KV_TYPES[number % 3], source)
        yield kind, name, _made(write), [_verify, *lines]


def sound_lines(kind: str, folder: Path) -> Iterator[list[str]]:
    """Command lines over the sound pack of a kind, for all ways to read it."""
    if kind in KEEPS:
        path = shutil.copytree(evicted(folder, kind), folder / "pack", dirs_exist_ok=True)
        yield from (line(path) for line in keep_lines(kind))
        shutil.rmtree(path)
        return
    path = folder / f"base-{kind}"
    base(folder, kind)
    for name, options in LINES.items():
        if (name == "tables") == (kind == "tables"):
            yield line_of(options)(path)


def _made(write: Callable[[Path], None]) -> Callable[[Path], tuple[Path, int]]:
    def make(folder: Path) -> tuple[Path, int]:
        path = folder / "pack"
        shutil.rmtree(path, ignore_errors=True)
        write(path)
        return path, sum(file.stat().st_size for file in path.iterdir())

    return make


def _verify(path: Path) -> list[str]:
    return ["pack", "verify", str(path)]


def _info(path: Path) -> list[str]:
    return ["pack", "info", str(path)]


def line_of(options: list[str]) -> Command:
    """`kvarn run` after a pack, with these options."""

    def line(path: Path) -> list[str]:
        model = str(path.parent / MODEL)
        size = ["-c", str(RUN + 2048), "-n", "3", "-p", "a b c"]
        return ["run", "-m", model, *size, *options, "--pack", str(path)]

    return line


def _segment(kind: str, source: random.Random) -> Spoiled:
    """A segment of K and V or of a column with other bytes."""
    prefix = source.choice(sorted(READ_BY))
    kind = "tables" if prefix == "index-tables" else kind
    filling, seed = source.choice(FILLINGS), source.random()

    def write(path: Path) -> None:
        parts, random_ = deepcopy(base(path.parent, kind)), random.Random(seed)
        place = random_.choice([one for one in sorted(parts.slots) if one[0].startswith(prefix)])
        filling(parts.slots[place], random_)
        parts.write(path)

    ways = READ_BY[prefix]
    some = source.sample(ways, min(3, len(ways)))
    name = f"{prefix} {filling.__name__}"
    return kind, name, write, [line_of(LINES[way]) for way in some]


def _words(data: bytearray, source: random.Random) -> None:
    """A run of one u16."""
    n = len(data) // 2
    length = source.choice((1, 32, 1024, 16384, n))
    first = source.randrange(max(1, n - length))
    data[2 * first : 2 * min(first + length, n)] = struct.pack("<H", source.choice(WORDS)) * (
        min(first + length, n) - first
    )


def _many_words(data: bytearray, source: random.Random) -> None:
    """Some runs."""
    for _ in range(20):
        _words(data, source)


def _floats(data: bytearray, source: random.Random) -> None:
    """A run of one f32."""
    n = len(data) // 4
    length = source.choice((1, 32, 256, n))
    first = source.randrange(max(1, n - length + 1))
    packed = struct.pack("<f", source.choice(FLOATS))
    data[4 * first : 4 * (first + length)] = packed * length


def _noise(data: bytearray, source: random.Random) -> None:
    """Random bytes, everywhere or somewhere."""
    length = min(source.choice((64, 2048, len(data), len(data))), len(data))
    first = source.randrange(len(data) - length + 1)
    data[first : first + length] = source.randbytes(length)


def _same(data: bytearray, source: random.Random) -> None:
    """One byte everywhere."""
    data[:] = bytes([source.choice((0, 1, 31, 32, 127, 128, 255))]) * len(data)


FILLINGS = (_words, _many_words, _floats, _noise, _same)


def _small(kind: str, source: random.Random) -> Spoiled:
    """A value of `pack.json`, the commit, the log, the tail, the hidden state or the centre."""
    changes = (_manifest, _commit, _record, _tail, _hidden, *[_centre] * (kind == "q4_0"))
    change, seed = source.choice(changes), source.random()

    def write(path: Path) -> None:
        parts = deepcopy(base(path.parent, kind))
        change(parts, random.Random(seed))
        parts.write(path)

    ways = source.sample(sorted(set(LINES) - {"tables"}), 2)
    lines = [_info, *(line_of(LINES[way]) for way in ways)]
    return kind, change.__name__, write, lines


def _value(source: random.Random) -> Any:
    return source.choice(list(VALUES.values()))


def _manifest(parts: Parts, source: random.Random) -> None:
    data: Any = parts.manifest
    key = source.choice([key for key in data if key != "check"])
    while isinstance(data[key], dict) and source.random() < 0.8:
        data = data[key]
        key = source.choice(list(data))
    data[key] = _value(source)


def _commit(parts: Parts, source: random.Random) -> None:
    names = ("sequence", "n_tokens", "log_bytes", "log_chain")
    tail = ("tail.epoch", "tail.n_bytes", "tail.chain")
    numbers = (0, 1, 1023, 1024, 2047, 2049, 4096, 1 << 31, 1 << 61)
    value = source.choice(numbers) if source.random() < 0.7 else _value(source)
    parts.changed[source.choice((*names, *tail))] = value


def _record(parts: Parts, source: random.Random) -> None:
    record = source.choice(parts.records)
    what = source.choice(("segment", "slot", "kind", "body", "ids", "twice", "gone", "many"))
    if what in ("segment", "slot", "kind"):
        setattr(record, what, source.choice((0, 1, 2, 3, 1 << 20, (1 << 24) - 1, (1 << 32) - 1)))
    elif what == "body":
        _noise(record.body, source) if len(record.body) > 64 else record.body.append(97)
    elif what == "ids":
        record.body[:4] = struct.pack("<I", source.choice((*IDS, 1 << 14, 4)))
    elif what == "twice":
        parts.records.insert(source.randrange(len(parts.records)), deepcopy(record))
    elif what == "gone":
        parts.records.remove(record)
    else:
        column = next(one for one in parts.records if one.kind == 2)
        for i in range(3000):
            other = deepcopy(column)
            other.body, other.segment = bytearray(struct.pack("<I", 1) + b"x%d" % i), 0
            parts.records.append(other)


def _tail(parts: Parts, source: random.Random) -> None:
    row = source.choice(parts.tail)
    what = source.choice(("position", "id", "row", "row", "gone", "twice"))
    if what == "position":
        row[:4] = struct.pack("<I", source.choice((0, 2047, 2048, 2049, 1 << 20, (1 << 32) - 1)))
    elif what == "id":
        row[4:8] = struct.pack("<I", source.choice(IDS))
    elif what == "row":
        data = row[8:]
        source.choice((_words, _floats, _same))(data, source)
        row[8:] = data
    elif what == "gone":
        parts.tail.remove(row)
    else:
        parts.tail.append(bytearray(row))


def _hidden(parts: Parts, source: random.Random) -> None:
    source.choice((_floats, _same))(parts.hidden, source)


def _centre(parts: Parts, source: random.Random) -> None:
    assert parts.centre is not None
    source.choice((_floats, _same))(parts.centre, source)


def _snapshot(_: str, source: random.Random) -> Spoiled:
    """A snapshot of a context that evicts, with other facts or contents."""
    keep, seed = source.choice(sorted(KEEPS)), source.random()
    change = source.choice((_facts, _facts, _numbers, _contents, _contents))

    def write(path: Path) -> None:
        shutil.copytree(evicted(path.parent, keep), path)
        facts, content = read_snapshot(path)
        data = bytearray(content)
        change(facts, data, random.Random(seed))
        write_snapshot(path, facts, bytes(data))

    return keep, change.__name__, write, [_info, *keep_lines(keep)]


def keep_lines(keep: str) -> tuple[Command, Command]:
    """`kvarn run` in a context that evicts: with exact attention, and with `hash`."""

    def line(path: Path) -> list[str]:
        size = ["-c", "256", "-n", "3", "-p", "a b"]
        return ["run", "-m", str(path.parent / MODEL), *size, *KEEP_LINES[keep], "--kv", str(path)]

    def hashed(path: Path) -> list[str]:
        return [*line(path), "--method", "hash", "--budget", "16", "--sink", "2", "--window", "4"]

    return line, hashed


def _facts(facts: dict[str, Any], data: bytearray, source: random.Random) -> None:
    key = source.choice(list(facts))
    numbers = (0, 1, 80, 1024, 1108, 100_000, 1 << 31, 1 << 40, 1 << 61, -1)
    if key == "columns" and source.random() < 0.7:
        facts["columns"] = {**facts[key], source.choice(("x", "positions")): source.choice(numbers)}
    else:
        facts[key] = source.choice(numbers) if source.random() < 0.7 else _value(source)


def _numbers(facts: dict[str, Any], data: bytearray, source: random.Random) -> None:
    """One of the seven numbers that scored methods add."""
    if not facts["n_extra"]:
        return _contents(facts, data, source)
    at = len(data) - facts["n_extra"] + 8 * source.randrange(7)
    values = (
        -1,
        0,
        1,
        3,
        80,
        1000,
        1108,
        10**5,
        10**6,
        1 << 31,
        1 << 40,
        -(1 << 63),
        (1 << 63) - 1,
    )
    data[at : at + 8] = struct.pack("<q", source.choice(values))
    return None


def _contents(facts: dict[str, Any], data: bytearray, source: random.Random) -> None:
    """Token ids, hidden state, K, V, positions, signatures, queries or sums."""
    ids, hidden = 4 * facts["n_tokens"], 4 * facts["n_hidden"]
    first, stop = source.choice(
        ((0, ids), (ids, ids + hidden), (ids + hidden, len(data)), (ids + hidden, len(data)))
    )
    part = data[first:stop]
    source.choice(FILLINGS)(part, source)
    data[first:stop] = part
