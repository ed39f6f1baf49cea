"""What a pack holds, told of its files."""

from __future__ import annotations

from pathlib import Path

from ..pack_info import PackHead, PackInfo
from ..prompt_facts import ProbeFacts
from .errors import unopened
from .folder import PackFolder
from .format import snapshot
from .format.log import KV


def pack_head(path: Path) -> PackHead:
    """What can be told of a pack without reading its tokens; `PackError` if it cannot be opened."""
    try:
        return _head(PackFolder(path))
    except OSError as error:
        raise unopened(path, error) from error


def pack_info(path: Path) -> PackInfo:
    """Describe a pack; `PackError` if it cannot be opened."""
    try:
        return _info(path)
    except OSError as error:
        raise unopened(path, error) from error


def _head(folder: PackFolder) -> PackHead:
    manifest = folder.manifest
    if manifest.slots is None:
        n_tokens = folder.last_commit().n_tokens
    else:
        facts = snapshot.read_facts(folder.path)
        n_tokens = facts.n_tokens if facts else 0
    made = manifest.model
    return PackHead(
        str(folder.path), made.name, made.fingerprint, made.path, n_tokens, manifest.goal
    )


def _info(path: Path) -> PackInfo:
    folder = PackFolder(path)
    manifest, above = folder.manifest, folder.parent
    probe: list[ProbeFacts] = []
    if manifest.slots is None:
        state = folder.state()
        n_tokens, commits = state.commit.n_tokens, state.commit.sequence
        probe = [sums.means(layer) for layer, sums in sorted(state.commit.probe.items())]
        indexes = sorted(name for name in state.tables.places if name != KV)
    else:
        facts = snapshot.read_facts(path)
        n_tokens, indexes = (facts.n_tokens, sorted(facts.columns)) if facts else (0, [])
        commits = int(facts is not None)
    return PackInfo(
        path=str(path),
        id=manifest.id,
        model=manifest.model.name,
        fingerprint=manifest.model.fingerprint,
        model_path=manifest.model.path,
        kv=manifest.kv,
        n_tokens=n_tokens,
        goal=manifest.goal,
        commits=commits,
        indexes=indexes,
        prefill=str(manifest.prefill or "exact"),
        probe=probe,
        parent="" if manifest.parent is None else manifest.parent.path,
        parent_prefill="" if above is None else str(above.manifest.prefill or "exact"),
        n_bytes=sum(file.lstat().st_blocks * 512 for file in path.iterdir()),
    )
