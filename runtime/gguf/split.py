"""Files split in shards: `NAME-00001-of-00003.gguf` and its siblings."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import GGUFError

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"

# The name has five digits, the count in the metadata is 16 bits wide.
_MAX_SHARDS = (1 << 16) - 1
_NAME = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)",
    re.DOTALL | re.IGNORECASE,
)


def shard_paths(path: Path, number: int, count: int) -> list[Path]:
    """Paths of all `count` shards, of which `path` is number `number` (from 0).

    Raises GGUFError where the file's name says otherwise or a shard is missing.
    """
    if not 1 <= count <= _MAX_SHARDS:
        raise GGUFError(path, f"metadata {SPLIT_COUNT!r}", f"{count:,}", f"1 to {_MAX_SHARDS:,}")
    if not 0 <= number < count:
        raise GGUFError(
            path, f"metadata {SPLIT_NO!r}", f"{number:,}", f"less than the {count:,} shards"
        )
    if count == 1:
        return [path]
    match = _NAME.fullmatch(path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise GGUFError(
            path,
            "name",
            f"{path.name!r} for shard {number + 1} of {count}",
            f"NAME-{number + 1:05d}-of-{count:05d}.gguf",
            "the other shards are found by name: give all of them their names back",
        )
    paths = [
        path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}{match['suffix']}")
        for i in range(count)
    ]
    missing = [shard for shard in paths if not shard.exists()]
    if missing:
        raise GGUFError(
            path,
            "shards",
            f"{count - len(missing)} of {count}, without {missing[0].name}",
            "all of them in one folder",
            "download the missing ones",
        )
    return paths
