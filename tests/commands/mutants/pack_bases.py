"""Sound packs of a tiny model, with every index or of every kind that evicts, to be spoiled."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import kvarn
from kvarn.runtime.keep.scored.base import ScoredKeep
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from lab.peers.model import write_model

from ...conftest import TINY
from ...runtime.store.disk.sealing import Parts

KV_TYPES = ("f16", "q8_0", "q4_0")
N_TOKENS = 2148  # two full segments, and some of a third
RUN = 16384  # tokens that hash tables are sorted by
_FEW = {"budget": 64, "sink": 4, "window": 16}
METHODS: dict[str, kvarn.Attend] = {
    "sketch": kvarn.TopK(**_FEW),
    "flat": kvarn.TopK(index="flat", **_FEW),
    "means": kvarn.TopK(tail="means", **_FEW),
    "hash": kvarn.Hash(**_FEW),
    "rerank": kvarn.Hash(rerank=2, **_FEW),
}
TABLES = kvarn.MagicPig(tables="8x20", dense_layers="none")
_COMMON = ["--budget", "64", "--sink", "4", "--window", "16", "--method"]
_SPARSE = ["--prefill", "sparse", "--prefill-from", "0", "--prefill-k", "16"]
LINES: dict[str, list[str]] = {
    "full": [],
    "sketch": [*_COMMON, "topk"],
    "flat": [*_COMMON, "topk", "--index", "flat"],
    "means": [*_COMMON, "topk", "--tail", "means"],
    "hash": [*_COMMON, "hash"],
    "rerank": [*_COMMON, "hash", "--rerank", "2"],
    "tables": ["--method", "magicpig", "--tables", "8x20", "--dense-layers", "none"],
    "prefill hash": [*_SPARSE, "--prefill-index", "hash"],
    "prefill sketch": [*_SPARSE, "--prefill-index", "sketch"],
}
"""Options of `kvarn run`, by the name of a way to read."""
READ_BY = {
    "layer": tuple(name for name in LINES if name != "tables"),
    "index-means": ("means", "prefill hash", "prefill sketch"),
    "index-sketch": ("sketch", "means", "prefill sketch"),
    "index-frame": ("sketch", "means", "prefill sketch"),
    "index-simhash": ("hash", "rerank", "prefill hash"),
    "index-tables": ("tables",),
}
"""Which of them read a file, by how its name begins."""
KEEPS = {
    "streaming": kvarn.Streaming(80),
    "hashevict": kvarn.HashEvict(80),
    "h2o": kvarn.H2O(80, every=16),
    "nacl": kvarn.NaCl(80, every=16),
    "snapkv": kvarn.SnapKV(80),
    "l2norm": kvarn.L2Norm(80),
}


KEEP_LINES = {
    name: ["--keep", name, "--keep-budget", "80", *["--keep-every", "16"] * bool(one.every)]
    if isinstance(one, ScoredKeep)
    else ["--keep", name, "--keep-budget", "80"]
    for name, one in KEEPS.items()
}
MODEL = "tiny.gguf"
"""The model's file, beside the packs."""


@cache
def model_of(folder: Path) -> Model:
    """The tiny model, in a file of this folder."""
    if not (folder / MODEL).exists():
        write_model(folder / MODEL, "f16", TINY)
    return load(folder / MODEL)


def ids_of(n: int) -> list[int]:
    source = random.Random(0)
    return [source.randrange(510) for _ in range(n)]


@cache
def base(folder: Path, kind: str) -> Parts:
    """A sound pack of this KV type with all indexes; "tables": with hash tables alone."""
    model, tables = model_of(folder), kind == "tables"
    kv = "f16" if tables else kind

    def write(path: Path) -> None:
        for method in (TABLES,) if tables else METHODS.values():
            disk = kvarn.Disk(path, kv, kv)
            with model.context(RUN + 2048, method, store=disk) as context:
                if not context.tokens:
                    context.prefill(ids_of(N_TOKENS))
                    if tables:
                        context.fill(RUN + 100)
                context.index()

    return Parts.of(_written(folder, kind, write))


@cache
def evicted(folder: Path, keep: str) -> Path:
    """A context of 1,100 tokens, most of which were evicted."""

    def write(path: Path) -> None:
        store = kvarn.Disk(path)
        with model_of(folder).context(256, keep=KEEPS[keep], store=store) as context:
            list(context.generate_ids(ids_of(1100), 8))

    return _written(folder, keep, write)


def _written(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """The pack of this name, written unless an earlier process has finished it."""
    path = folder / f"base-{name}"
    if not path.exists():
        shutil.rmtree(part := folder / f"part-{name}", ignore_errors=True)
        write(part)
        part.rename(path)
    return path
