"""Chooses the files of a repository to pull."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from ..errors import HubError
from ..hf.files.folder import PICKLES, SAFETENSORS_SPACE

SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tokenization_*.py",
    "sentencepiece.bpe.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "modules.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "model.safetensors.index.json",
    "README.md",
    "LICENSE*",
)
"""The files that a conversion reads beside the weights (it runs none), and the model's licence."""

_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_PROJECTOR = re.compile(r"(^|[/_.-])mmproj([_.-]|$)", re.IGNORECASE)
_MATRIX = re.compile(r"(^|[/_.-])imatrix([_.-]|$)", re.IGNORECASE)
# llama.cpp's prefixes of the small models that draft for the one beside them.
_DRAFTS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_TYPE = re.compile(
    r"(?<![a-z0-9])((?:ud-|i1-)?(?:i?q\d(?:_[a-z0-9]+)*|tq\d_\d|mxfp4(?:_moe)?|bf16|f16|f32))"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)
_UNQUANTISED = ("F32", "BF16", "F16")
ANY = ("", "latest")
"""Tags that leave the choice to kvarn."""


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository."""

    name: str
    n_bytes: int
    digest: str = ""
    """Its id in git (40 hexadecimal digits) or its sha256 (64); "" where no hub listed it."""


@dataclass(frozen=True)
class Quantisation:
    """One ready model of a repository: a GGUF file, or all shards of one."""

    type: str
    """The type in its path, such as Q4_K_M or UD-Q4_K_XL; "" if there is none."""
    files: tuple[RepositoryFile, ...]

    @property
    def name(self) -> str:
        """The name of its first file, which is the one to open."""
        return self.files[0].name

    @property
    def n_bytes(self) -> int:
        """Size of all its files."""
        return sum(file.n_bytes for file in self.files)

    def is_named(self, tag: str) -> bool:
        """Whether a tag is its type or the name of a file of it, in any case."""
        names = (self.type, *(file.name for file in self.files))
        return tag.lower() in (name.lower() for name in names if name)

    def has_type(self, tag: str) -> bool:
        """Whether a tag is its type, with or without its prefix: Q4_K_XL for UD-…"""
        return tag.upper() in (self.type, self.type.partition("-")[2])


@dataclass(frozen=True)
class Choice:
    """The files to pull."""

    files: tuple[RepositoryFile, ...]
    model: str | None = None
    """The GGUF file among them that can be run; None for weights to convert."""
    ready: tuple[Quantisation, ...] = ()
    """All ready models of the repository, if one was chosen."""


def choose(
    files: Sequence[RepositoryFile],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    file: str | None = None,
    budget: int,
) -> Choice:
    """Choose among a repository's files.

    Safetensors in the root with a config.json come first, with the files that their conversion
    reads; else one ready model; else an adapter that PEFT has saved. include, exclude: patterns of
    names that decide instead. file: the name of a ready model, its type, a part of its path before
    "." or "-", or a pattern of it, in any case; "" and "latest" for one that fits the memory.
    budget: bytes that a model may take in memory.

    Raises `HubError` where there is no choice: no weights, pickles alone, an unknown `file`.
    """
    if file is not None:
        ready = quantisations(files)
        if not ready:
            raise HubError("it has no GGUF file: pull its weights with `kvarn hf-pull` and convert")
        return _ready(ready, file, budget)
    if include or exclude:
        return _by_pattern(files, include, exclude)
    weights = _safetensors(files)
    if weights and any(f.name == "config.json" for f in files):
        return Choice((*(f for f in files if _matches(f, SMALL)), *weights))
    ready = quantisations(files)
    if ready:
        return _ready(ready, "", budget)
    if {*_ADAPTER} <= {f.name for f in files}:
        return Choice(tuple(f for f in files if _matches(f, (*_ADAPTER, "README.md", "LICENSE*"))))
    if any(f.name.endswith(PICKLES) for f in files):
        raise HubError(
            "it has its weights as pickles alone, which can run any code when read; "
            f"{SAFETENSORS_SPACE} makes safetensors of them, then pull with --revision refs/pr/N"
        )
    raise HubError(
        "it holds neither safetensors with a config.json, nor GGUF files, nor an adapter"
    )


def quantisations(files: Sequence[RepositoryFile]) -> tuple[Quantisation, ...]:
    """The ready models, smallest first; shards of one count together."""
    groups: dict[str, list[RepositoryFile]] = {}
    for file in sorted(files, key=lambda f: f.name):
        if _is_model(file.name):
            groups.setdefault(_SHARD.sub(r"-of-\2", file.name), []).append(file)
    models = [Quantisation(_type_of(name), tuple(group)) for name, group in groups.items()]
    return tuple(sorted(models, key=lambda q: (q.n_bytes, q.name)))


def _is_model(path: str) -> bool:
    """Whether a file is a GGUF model: no projector, no draft, no importance matrix.

    A model may have been quantised with a matrix and say so beside its type.
    """
    name = path.rsplit("/", 1)[-1]
    if not name.lower().endswith(".gguf") or _PROJECTOR.search(path) or name.startswith(_DRAFTS):
        return False
    return not _MATRIX.search(name) or _type_of(name) != ""


def _type_of(path: str) -> str:
    types = _TYPE.findall(path)
    return types[-1].upper() if types else ""


def _ready(ready: tuple[Quantisation, ...], tag: str, budget: int) -> Choice:
    chosen = _fitting(ready, budget) if tag.lower() in ANY else _named(ready, tag)
    counts = [int(match[2]) for f in chosen.files if (match := _SHARD.search(f.name))]
    if counts and counts[0] != len(chosen.files):
        raise HubError(f"{chosen.name} is one of {counts[0]} shards, {len(chosen.files)} are there")
    return Choice(chosen.files, chosen.name, ready)


def _fitting(ready: tuple[Quantisation, ...], budget: int) -> Quantisation:
    """The largest that fits, unquantised ones only where there is nothing else; or the smallest."""
    quantised = [q for q in ready if q.type not in _UNQUANTISED] or list(ready)
    fitting = [q for q in quantised if q.n_bytes <= budget]
    return fitting[-1] if fitting else quantised[0]


def _named(ready: tuple[Quantisation, ...], tag: str) -> Quantisation:
    """The first by name that a tag names; else, as in llama.cpp, with the tag before "." or "-";
    else that it is a pattern of."""
    by_name = sorted(ready, key=lambda q: q.name)
    part = re.compile(re.escape(tag) + "[.-]", re.IGNORECASE)
    named = (
        [q for q in by_name if q.is_named(tag)]
        or [q for q in by_name if part.search(q.name)]
        or [q for q in by_name if fnmatch(q.name.lower(), tag.lower())]
    )
    if named:
        return named[0]
    types = [q.type for q in ready]
    known = (q.type if q.type and types.count(q.type) == 1 else q.name for q in ready)
    raise HubError(f"there is no {tag!r:.80}; it has {', '.join(known)}")


def _by_pattern(
    files: Sequence[RepositoryFile], include: Sequence[str], exclude: Sequence[str]
) -> Choice:
    included = [f for f in files if not include or _matches(f, include)]
    chosen = tuple(f for f in included if not _matches(f, exclude))
    if not chosen:
        raise HubError("no file is left by --include and --exclude")
    ready = quantisations(chosen)
    alone = ready[0].name if len(ready) == 1 and not _safetensors(chosen) else None
    return Choice(chosen, alone)


def _matches(file: RepositoryFile, patterns: Sequence[str]) -> bool:
    return any(fnmatch(file.name, pattern) for pattern in patterns)


def _safetensors(files: Sequence[RepositoryFile]) -> list[RepositoryFile]:
    """Shards that transformers loads: Mistral's consolidated.* hold the same weights once more."""
    return [f for f in files if re.fullmatch(r"model[^/]*\.safetensors", f.name)]
