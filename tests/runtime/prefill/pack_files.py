"""Files of packs: their bytes, and a pack.json that says something else."""

import json
from pathlib import Path

from kvarn.runtime.store.disk.files import digest


def bytes_of(path: Path) -> dict[str, bytes]:
    """Full segments of K, V and columns, and the tail; not what differs by id or number."""
    files = [*path.glob("layer-*.kv"), *path.glob("index-*")]
    return {file.name: file.read_bytes() for file in sorted(files)}


def write_checked(path: Path, data: dict) -> None:
    """A pack.json that says something else, with a sound checksum."""
    rest = {key: value for key, value in data.items() if key != "check"}
    data["check"] = digest(json.dumps(rest, sort_keys=True).encode()).hex()
    (path / "pack.json").write_text(json.dumps(data))
