"""Learned hash encoders in files: a sidecar beside the model, metadata of the model itself, or a
sidecar that ships with kvarn for a model of this fingerprint.

A sidecar `NAME.hash.gguf` stands beside `NAME.gguf`:

    general.type = "adapter", adapter.type = "hash", general.architecture as the model has it
    kvarn.hash.version, .bits, .hidden, .length (tokens of context it was trained with)   u32
    version: 1 with hidden layers; 2 where they may be 0 wide, which says linear encoders
    kvarn.hash.base (the model's name), .fingerprint (of the model), .digest (of the weights)
    blk.N.hash_q.I.weight  f16 [query head][out][in]    blk.N.hash_q.I.bias  f32 [query head][out]
    blk.N.hash_k.I.weight  f16 [KV head][out][in]       blk.N.hash_k.I.bias  f32 [KV head][out]

with I = 0, 1, 2 (E → hidden → hidden → bits), or only 0 of linear encoders (E → bits), for each
layer N without a sliding window. A model file with embedded encoders has the same `kvarn.hash`
keys, and for each such layer one string `kvarn.hash.blk.N`: the bytes of these arrays, in this
order, in base64. `published/FINGERPRINT.hash.gguf` is a sidecar that ships with kvarn.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....models.config import ModelConfig
from ....system.files import new_file
from ....system.spelling import spelt
from ...gguf import GGUFFile, open_gguf
from ...loading.fingerprint import fingerprint
from ..base import AttendError
from .networks import Dense, Learned, LearnedLayer

VERSIONS = (1, 2)
MAX_HIDDEN = 512  # half of what the kernels take
BITS = (32, 64)
PUBLISHED = Path(__file__).with_name("published")
"""Sidecars that ship with kvarn, each named by the fingerprint of its model."""
_PREFIX = "kvarn.hash."
_NUMBERS = ("bits", "hidden", "length")
_WORDS = ("base", "fingerprint", "digest")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def widths_of(head_dim: int, hidden: int, bits: int) -> tuple[int, ...]:
    """The widths of an encoder's layers; hidden 0: it is linear."""
    return (head_dim, hidden, hidden, bits) if hidden else (head_dim, bits)


def sidecar_path(model_path: Path) -> Path:
    """The path of a model's sidecar: `model.gguf` and `model-00001-of-00002.gguf` both have
    `model.hash.gguf`."""
    return model_path.with_name(f"{_SHARD.sub('', model_path.stem)}.hash.gguf")


def find_encoders(model: GGUFFile) -> Learned | None:
    """The model's `own_encoders`, or else those that ship with kvarn; None if there are none.

    Raises `AttendError` or `GGUFError` for a file that is damaged or belongs to another model.
    """
    published = PUBLISHED / f"{fingerprint(model)}.hash.gguf"
    if (learned := own_encoders(model)) is not None or not published.exists():
        return learned
    return read_sidecar(published, model)


def own_encoders(model: GGUFFile) -> Learned | None:
    """The learned encoders beside a model's file, or those in it; None if there are none.

    Raises what `find_encoders` raises.
    """
    path = sidecar_path(model.path)
    if path.exists():
        return read_sidecar(path, model)
    return _Reader(model, model).read() if f"{_PREFIX}version" in model.metadata else None


def read_sidecar(path: Path, model: GGUFFile) -> Learned:
    """The encoders of a sidecar, which must be made for this model.

    Raises `GGUFError` for a file that is no sound GGUF file and `AttendError` for one that holds no
    encoders, damaged ones, or another model's.
    """
    with open_gguf(path) as file:
        return _Reader(file, model).read()


def write_sidecar(path: Path, learned: Learned, architecture: str) -> None:
    """Write a sidecar, whole or not at all; raises what `new_file` raises."""
    with new_file(path) as part:
        _write(part, learned, architecture)


def _write(path: Path, learned: Learned, architecture: str) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "hash")
    writer.add_name(f"hash encoders of {learned.base}")
    for key, value in _description(learned).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for number, layer in sorted(learned.layers.items()):
        for side, dense in (("q", layer.q), ("k", layer.k)):
            for i, part in enumerate(dense):
                writer.add_tensor(f"blk.{number}.hash_{side}.{i}.weight", part.weight)
                writer.add_tensor(f"blk.{number}.hash_{side}.{i}.bias", part.bias)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _description(learned: Learned) -> dict[str, Any]:
    """The `kvarn.hash` keys without the weights."""
    values = {name: getattr(learned, name) for name in (*_NUMBERS, *_WORDS)}
    version = 1 if learned.hidden else 2  # so that an older kvarn reads what it can
    return {f"{_PREFIX}{name}": value for name, value in {"version": version, **values}.items()}


def embedded_values(learned: Learned) -> dict[str, int | str]:
    """All `kvarn.hash` keys, for a model file that holds its encoders."""
    values = _description(learned)
    for number, layer in sorted(learned.layers.items()):
        data = b"".join(array.tobytes() for array in layer.arrays())
        values[f"{_PREFIX}blk.{number}"] = base64.b64encode(data).decode()
    return values


def is_hash_key(key: str) -> bool:
    """Whether a metadata key describes or holds encoders."""
    return key.startswith(_PREFIX)


@dataclass(frozen=True)
class Description:
    """What a file says of its encoders, weights apart."""

    bits: int
    hidden: int
    length: int
    base: str
    fingerprint: str
    digest: str
    embedded: bool

    @staticmethod
    def of(file: GGUFFile) -> Description | None:
        """The description in a sidecar or in a model with encoders; None for other files.

        Raises `AttendError` and `GGUFError` for keys that are missing or have impossible values.
        """
        embedded = file.get("general.type", str, "model") == "model"
        if f"{_PREFIX}version" not in file.metadata:
            return None
        version = file.get(f"{_PREFIX}version", int)
        if version not in VERSIONS:
            raise _wrong_key(file, "version", f"{version}", "1 or 2: a newer kvarn may read it")
        bits, hidden, length = (file.get(f"{_PREFIX}{name}", int) for name in _NUMBERS)
        if bits not in BITS:
            raise _wrong_key(file, "bits", f"{bits}", "32 or 64")
        linear = hidden == 0 and version > 1
        if not linear and (not 16 <= hidden <= MAX_HIDDEN or hidden % 16):
            raise _wrong_key(file, "hidden", f"{hidden}", f"a multiple of 16 up to {MAX_HIDDEN}")
        base, fingerprint, digest = (file.get(f"{_PREFIX}{name}", str) for name in _WORDS)
        return Description(bits, hidden, length, base, fingerprint, digest, embedded)


def _wrong_key(file: GGUFFile, name: str, found: str, expected: str) -> AttendError:
    return _damaged(file, f"{_PREFIX}{name}", found, expected)


def _damaged(file: GGUFFile, part: str, found: str, expected: str) -> AttendError:
    return AttendError(
        f"{file.path}: {part} of the hash encoders: found {found}, expected {expected}"
    )


class _Reader:
    """Reads and checks the encoders of one open file against the model that uses them."""

    def __init__(self, file: GGUFFile, model: GGUFFile) -> None:
        self.file, self.model = file, model
        self.config = ModelConfig.from_metadata(model.metadata)

    def read(self) -> Learned:
        facts = Description.of(self.file)
        if facts is None:
            raise AttendError(
                f"{self.file.path}: found a GGUF file without hash encoders, expected one that "
                "`kvarn learn` has written"
            )
        of_model = fingerprint(self.model)
        if facts.fingerprint != of_model:
            raise AttendError(
                f"{self.file.path}: the hash encoders are for the model {facts.base!r} with "
                f"fingerprint {facts.fingerprint}, and {self.model.path.name} has fingerprint "
                f"{of_model}: train others with `kvarn learn`, or use {spelt('encoders')} simhash"
            )
        numbers = [i for i, layer in enumerate(self.config.kv_layers) if layer.window is None]
        part = self._embedded if facts.embedded else self._tensors
        layers = {number: self._layer(number, facts, part(number, facts)) for number in numbers}
        learned = Learned(
            facts.bits, facts.hidden, facts.length, facts.fingerprint, facts.base, layers
        )
        if learned.digest != facts.digest:
            raise _wrong_key(self.file, "digest", f"{learned.digest} of its weights", facts.digest)
        return learned

    def _shapes(self, facts: Description) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and dtype of each array of a layer, in their order."""
        widths = widths_of(self.config.head_dim, facts.hidden, facts.bits)
        heads = {"q": self.config.n_heads, "k": self.config.n_kv_heads}
        return [
            (f"hash_{side}.{i}.{part}", shape, dtype)
            for side, n in heads.items()
            for i in range(len(widths) - 1)
            for part, shape, dtype in (
                ("weight", (n, widths[i + 1], widths[i]), "<f2"),
                ("bias", (n, widths[i + 1]), "<f4"),
            )
        ]

    def _layer(
        self, number: int, facts: Description, read: Callable[..., NDArray[Any]]
    ) -> LearnedLayer:
        arrays = [read(*shape) for shape in self._shapes(facts)]
        dense = tuple(Dense(w, b) for w, b in zip(arrays[::2], arrays[1::2]))
        for (name, *_), array in zip(self._shapes(facts), arrays):
            if not np.isfinite(array).all():
                raise _damaged(self.file, f"blk.{number}.{name}", "NaN or infinity", "numbers")
        n = len(dense) // 2
        return LearnedLayer(dense[:n], dense[n:])

    def _tensors(self, number: int, facts: Description) -> Callable[..., NDArray[Any]]:
        types = {"<f2": "F16", "<f4": "F32"}

        def read(name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
            full = f"blk.{number}.{name}"
            tensor = self.file.tensors.get(full)
            expected = f"{types[dtype]} {shape}"
            if tensor is None:
                raise _damaged(self.file, full, "no such tensor", expected)
            if tensor.type.name != types[dtype] or tensor.shape != shape:
                raise _damaged(self.file, full, f"{tensor.type.name} {tensor.shape}", expected)
            return tensor.data.reshape(-1).view(dtype).reshape(shape).copy()

        return read

    def _embedded(self, number: int, facts: Description) -> Callable[..., NDArray[Any]]:
        key = f"{_PREFIX}blk.{number}"
        sizes = [np.dtype(d).itemsize * int(np.prod(s)) for _, s, d in self._shapes(facts)]
        try:
            data = base64.b64decode(self.file.get(key, str), validate=True)
        except (binascii.Error, ValueError):
            raise _damaged(self.file, key, "a string that is not base64", "base64") from None
        if len(data) != sum(sizes):
            raise _damaged(self.file, key, f"{len(data):,} bytes", f"{sum(sizes):,}")
        at = 0

        def read(name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
            nonlocal at
            array = np.frombuffer(data, dtype, int(np.prod(shape)), at).reshape(shape)
            at += array.nbytes
            return array

        return read
