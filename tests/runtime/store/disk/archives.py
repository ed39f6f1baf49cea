"""Hostile archives: those of a whole pack, changed at one place by a seeded generator."""

import io
import random
import tarfile
from collections.abc import Callable

Member = tuple[tarfile.TarInfo, bytes]

NAMES = (
    "../evil", "/tmp/evil", "lock", "pack.json", "layer-000.kv", "layer-999.kv", "tail-2",
    "x" * 300, "index-", "index-../evil", "index-evil", "snapshot",
    "conversation.json", "", ".", "a\nb", "é",
)  # fmt: skip
TYPES = (b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"x", b"g", b"L", b"K", b"S", b"V", b"\0", b"D")
SIZES = (-1, 1, 511, 1 << 20, 8**11 - 1, 8**11, 1 << 40, 1 << 62, 1 << 88)


def members_of(data: bytes) -> list[Member]:
    """The members of an archive, in order."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(entry, archive.extractfile(entry).read()) for entry in archive]  # type: ignore[union-attr]


def joined(members: list[Member], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for entry, content in members:
            entry.size = len(content) if entry.type == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def numbered(n: int) -> bytes:
    """A size in a header: octal, or base 256 where that has no room."""
    if 0 <= n < 8**11:
        return b"%011o\0" % n
    return bytes([0xFF if n < 0 else 0x80]) + (n % (1 << 88)).to_bytes(11, "big")


def header(data: bytearray, at: int, changes: dict[int, bytes]) -> bytes:
    """The archive with other bytes in the header at `at`, whose sum is right again."""
    for offset, new in changes.items():
        data[at + offset : at + offset + len(new)] = new
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


def starts(data: bytes) -> list[int]:
    """Where the headers are."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [entry.offset for entry in archive]


def cut(data: bytes, source: random.Random) -> bytes:
    return data[: source.choice((0, 1, 511, 512, 513, source.randrange(len(data))))]


def noise(data: bytes, source: random.Random) -> bytes:
    return source.randbytes(source.choice((512, 10_240, 1 << 16)))


def zeros(data: bytes, source: random.Random) -> bytes:
    return bytes(source.choice((512, 1024, 10_240)))


def other_size(data: bytes, source: random.Random) -> bytes:
    return header(
        bytearray(data), source.choice(starts(data)), {124: numbered(source.choice(SIZES))}
    )


def other_type(data: bytes, source: random.Random) -> bytes:
    at = source.choice(starts(data))
    return header(bytearray(data), at, {156: source.choice(TYPES), 157: b"/etc/passwd\0"})


def other_name(data: bytes, source: random.Random) -> bytes:
    members = members_of(data)
    source.choice(members)[0].name = source.choice([n for n in NAMES if n])
    return joined(members)


def other_order(data: bytes, source: random.Random) -> bytes:
    members = members_of(data)
    first, second = source.sample(range(len(members)), 2)
    members[first], members[second] = members[second], members[first]
    return joined(members)


def left_out(data: bytes, source: random.Random) -> bytes:
    members = members_of(data)
    del members[source.randrange(len(members))]
    return joined(members)


def twice(data: bytes, source: random.Random) -> bytes:
    members = members_of(data)
    members.insert(source.randrange(len(members) + 1), source.choice(members))
    return joined(members)


def one_more(data: bytes, source: random.Random) -> bytes:
    members = members_of(data)
    entry = tarfile.TarInfo(source.choice([n for n in NAMES if n]))
    members.insert(source.randrange(len(members) + 1), (entry, source.randbytes(100)))
    return joined(members)


def long_names(data: bytes, source: random.Random) -> bytes:
    """GNU's long names, one after the other, their sizes as they like."""
    block = tarfile.TarInfo("././@LongLink")
    block.type, block.size = source.choice((b"L", b"K")), 512
    chain = bytearray(block.tobuf(tarfile.GNU_FORMAT) + bytes(512)) * source.choice((1, 2, 3000))
    if source.random() < 0.5:
        chain = bytearray(header(chain, 0, {124: numbered(source.choice(SIZES))}))
    return bytes(chain) + data


def many_empty(data: bytes, source: random.Random) -> bytes:
    name = source.choice(("index-{}", "index-same", "pack.json", "{}"))
    empty = [(tarfile.TarInfo(name.format(i)), b"") for i in range(20_000)]
    whole = members_of(data)
    return joined(source.choice(([*empty, *whole], [*whole, *empty])))


def sparse(data: bytes, source: random.Random) -> bytes:
    """A GNU sparse member: some bytes that are to be a terabyte."""
    at = source.choice(starts(data))
    entry = numbered(1 << 40)
    return header(
        bytearray(data), at, {156: b"S", 257: b"ustar  \0", 386: entry + entry, 483: entry}
    )


def pax(data: bytes, source: random.Random) -> bytes:
    """Extended headers before a member."""
    record = source.choice(
        (
            b"size=1\n", b"size=-1\n", b"size=1099511627776\n", b"path=../evil\n", b"linkpath=/\n",
            b"GNU.sparse.realsize=1099511627776\n", b"size=" + b"9" * 4000 + b"\n", b"", b"\0",
        )
    )  # fmt: skip
    content = b"%d %s" % (source.choice((0, len(record) + 3, 9_999)), record)
    entry = tarfile.TarInfo("././@PaxHeader")
    entry.type, entry.size = source.choice((b"x", b"g")), len(content)
    whole = entry.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    at = source.choice(starts(data))
    return data[:at] + whole * source.choice((1, 2, 2000)) + data[at:]


def flipped(data: bytes, source: random.Random) -> bytes:
    """A bit of a header or of a small file."""
    changed = bytearray(data)
    at = source.choice(starts(data)) + source.randrange(1024)
    changed[min(at, len(data) - 1)] ^= 1 << source.randrange(8)
    return bytes(changed)


def padded(data: bytes, source: random.Random) -> bytes:
    """Bytes that no digest covers, in what fills up the last blocks."""
    changed = bytearray(data)
    changed[-source.randint(1, 1000)] = source.randint(1, 255)
    return source.choice((bytes(changed), data + bytes(1 << 20), data + b"more"))


def in_a_slot(data: bytes, source: random.Random) -> bytes:
    """A byte between a segment and the end of its slot."""
    members = members_of(data)
    entry, content = source.choice([m for m in members if m[0].name.startswith("index-")])
    changed = bytearray(content)
    changed[-source.randint(1, 100)] = 7
    members[[m[0] for m in members].index(entry)] = entry, bytes(changed)
    return joined(members)


def other_manifest(data: bytes, source: random.Random) -> bytes:
    members = members_of(data)
    texts = (b"", b"{}", b"[" * 60_000, b'{"format":' + b"9" * 5000 + b"}", bytes(1 << 17), b"\xff")
    members[0] = members[0][0], source.choice(texts)
    return joined(members)


KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    cut, noise, zeros, other_size, other_type, other_name, other_order, left_out, twice, one_more,
    long_names, many_empty, sparse, pax, flipped, padded, in_a_slot, other_manifest,
)  # fmt: skip
