"""Describes a pack by its files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ....ops.arrays import U32
from ....ops.attention.layout import SEGMENT
from ..base import types_text
from ..facts import PackHead, PackInfo, ProbeFacts
from .errors import PackError, opening
from .folder import PackFolder
from .format import snapshot
from .format.log import KV
from .format.manifest import NAME as MANIFEST
from .format.parts_text import parts_folder, parts_text
from .format.superblock import Commit


def pack_head(path: Path) -> PackHead:
    """Describe a pack without reading its tokens. Raises `PackError` if it cannot be opened."""
    with opening(path):
        folder = PackFolder(path)
        if folder.manifest.slots is None:
            commit = folder.last_commit()
            n_read, n_blocks = _blocks(folder, commit)
            head = _head(folder, commit.n_tokens)
            return replace(head, n_blocks_read=n_read, n_blocks=n_blocks)
        facts = snapshot.read_facts(path)
        return _head(folder, facts.n_tokens if facts else 0)


def pack_ids(path: Path) -> U32:
    """The ids of a pack's tokens, uint32 (n,); `PackError` if it cannot be opened, or evicts."""
    with opening(path):
        folder = PackFolder(path)
        if folder.manifest.slots is not None:
            raise PackError(path, f"it keeps {folder.manifest.slots}: expected all its tokens")
        return folder.token_ids()


def _head(folder: PackFolder, n_tokens: int) -> PackHead:
    model, goal = folder.manifest.model, folder.manifest.goal
    adapters = [f"{adapter.path}:{adapter.scale!r}" for adapter in model.adapters]
    return PackHead(
        str(folder.path), model.name, model.fingerprint, model.path, n_tokens, goal, adapters
    )


def _blocks(folder: PackFolder, commit: Commit) -> tuple[int, int]:
    """(how many are read, how many there are) of a pack's blocks while they are read apart: those
    that it has, and whole parts. Raises `PackError` for a damaged text of the parts."""
    read, text = folder.manifest.prefill, parts_text(folder.path)
    is_joined = text is None or text.n_segments != commit.n_tokens // SEGMENT
    if is_joined or text is None or read is None or not read.size:
        return 0, 0
    n_read = text.n_segments * SEGMENT // read.size
    for part in parts_folder(folder.path).glob("*/" + MANIFEST):
        with suppress(PackError):  # a damaged one is read again, or named by what reads it
            n_read += pack_head(part.parent).complete
    return n_read, -(-(commit.n_apart or 0) // read.size)


def pack_info(path: Path) -> PackInfo:
    """Describe a pack; `PackError` if it cannot be opened."""
    with opening(path):
        folder = PackFolder(path)
        if folder.manifest.slots is None:
            state = folder.state()
            commit = state.commit
            indexes = sorted(name for name in state.tables.places if name != KV)
            probe = [sums.means(layer) for layer, sums in sorted(commit.probe.items())]
            info = _info(folder, commit.n_tokens, commit.sequence, indexes, probe)
            positions = [slot.n_tokens for slot in commit.states]
            info = replace(info, states=positions, state_bytes=folder.manifest.state_bytes)
            n_read, n_blocks = _blocks(folder, commit)
            info = replace(info, n_blocks_read=n_read, n_blocks=n_blocks)
            read = folder.manifest.prefill
            if read is None or not read.size:
                return info
            return replace(info, prefill=str(replace(read, until=commit.n_apart or read.until)))
        facts = snapshot.read_facts(path)
        if facts is None:
            return _info(folder, 0, 0, [], [])
        return _info(folder, facts.n_tokens, 1, sorted(facts.columns), [])


def _info(
    folder: PackFolder, n_tokens: int, commits: int, indexes: list[str], probe: list[ProbeFacts]
) -> PackInfo:
    manifest, above = folder.manifest, folder.parent
    return PackInfo(
        **vars(_head(folder, n_tokens)),
        id=manifest.id,
        kv=types_text(manifest.k_type, manifest.v_type),
        commits=commits,
        indexes=indexes,
        prefill=str(manifest.prefill or "exact"),
        probe=probe,
        parent="" if manifest.parent is None else str(manifest.parent.folder(folder.path)),
        parent_prefill="" if above is None else str(above.manifest.prefill or "exact"),
        n_bytes=sum(file.lstat().st_blocks * 512 for file in folder.path.iterdir()),
    )
