"""What a pack takes of the system does not grow with its tokens: open files, mappings."""

import sys
import textwrap
from pathlib import Path

import pytest

from ....programs import printed
from .packs import LAYERS, check, opened, random_tokens, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

N_SEGMENTS, OPEN_FILES = 64, 64
COMMAND = textwrap.dedent(
    """
    import resource, sys
    from dataclasses import replace
    sys.path.insert(0, sys.argv[1])
    import packs
    from packs import FACTS, LAYERS, SEGMENT
    from kvarn.runtime.store.disk.archive import export_pack, import_pack
    from kvarn.runtime.store.disk.parents import shared_segments
    from kvarn.runtime.store.disk.contents import create
    from kvarn.runtime.store.disk.folder import PackFolder
    from kvarn.runtime.store.disk.format.manifest import Manifest

    n_segments, n_files = map(int, sys.argv[3:])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, limits[1]))
    folder = packs.Path(sys.argv[2])
    tokens = packs.random_tokens(n_segments * SEGMENT + 5)

    def mapped(path):
        lines = packs.Path("/proc/self/maps").read_text().splitlines()
        return sum(str(path) + "/" in line for line in lines)

    def build(store, path, start):
        for stop in [*range(start + SEGMENT, len(tokens), SEGMENT), len(tokens)]:
            packs.fill(store, tokens[:stop], start)
            packs.fill_column(store, tokens[:stop])
            packs.save(store, tokens[:stop])
            start = stop
        store.reserve(len(tokens) + 1)
        packs.check(store, tokens)
        assert mapped(path) == LAYERS + 1, mapped(path)
        store.close()

    whole, child, copy = folder / "pack", folder / "child", folder / "copy"
    packs.make(whole)
    build(packs.opened(whole), whole, 0)
    for io, n in ("mmap", LAYERS + 1), ("pread", 0):
        reader = packs.opened(whole, writable=False, io=io)
        packs.check(reader, tokens)
        assert mapped(whole) == n
        reader.close()
        del reader
    half = packs.opened(whole)
    tokens = tokens[: n_segments // 2 * SEGMENT + 5]
    packs.save(half, tokens)
    half.close()
    del half
    assert mapped(whole) == 0
    above = PackFolder(whole)
    create(child, Manifest(FACTS, "f16", "f16", False, shared_segments(above, above.state())))
    store = packs.opened(child)
    store.adopt(PackFolder(whole))
    start, tokens = len(tokens), tokens + packs.random_tokens(n_segments // 2 * SEGMENT, seed=1)
    build(store, child, start)
    del store
    export_pack(child, folder / "archive")
    import_pack(folder / "archive", copy)
    assert all(packs.holds(path, tokens) for path in (child, copy))
    """
)


def test_sixty_four_segments_with_sixty_four_open_files(tmp_path: Path) -> None:
    """Written, read in both ways, as a child, exported, imported, verified."""
    here = str(Path(__file__).parent)
    printed(COMMAND, here, tmp_path, N_SEGMENTS, OPEN_FILES)


def of_process(path: Path) -> tuple[int, int]:
    """A folder's files that this process has open, and its mappings of them.

    Files elsewhere do not count: garbage of other tests may be collected at any time.
    """
    files = [entry.resolve() for entry in Path("/proc/self/fd").iterdir()]
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(path in file.parents for file in files), sum(f"{path}/" in line for line in lines)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_fifty_readers_leave_nothing(pack: Path, io: str) -> None:
    tokens = random_tokens(3000)
    write(pack, tokens)
    before = of_process(pack)
    readers = [opened(pack, writable=False, io=io) for _ in range(50)]
    for reader in readers:
        check(reader, tokens)
    n_files = 3 + LAYERS + 1  # superblocks, log, tail, layers, column
    assert of_process(pack)[0] - before[0] <= 50 * n_files
    assert of_process(pack)[1] - before[1] == (50 * (LAYERS + 1) if io == "mmap" else 0)
    for reader in readers:
        reader.close()
    del reader, readers
    assert of_process(pack) == before
