"""Hash encoders inside a model file: one file to share, which llama.cpp loads like any other.

llama.cpp refuses tensors that it does not know and ignores such metadata, so that the encoders go
there, one base64 string a layer (see `runtime.attend.encoders.sidecar`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.attend.encoders.sidecar import add_embedded, is_hash_key, read_sidecar
from ..runtime.gguf import GGUFFile, open_gguf
from ..system.errors import KvarnError
from ..system.files import check_target, new_file

if TYPE_CHECKING:
    from ..runtime.attend.encoders import Learned

_WRITTEN = ("GGUF.", "general.architecture", "split.")  # by the writer, or true of the source only


def embed_encoders(model: Path, sidecar: Path, out: Path) -> None:
    """Write a copy of a model file, split or not, that holds the encoders of a sidecar.

    Encoders that it held already are replaced. Raises `AttendError` for a sidecar that is damaged
    or another model's, `GGUFError` for a file that cannot be read, `KvarnError` where `out` is one
    of the files that are read, and `FileRefused` where it is no name of a file to write. `out` is
    written whole or not at all.
    """
    check_target(out)
    file = open_gguf(model)
    learned = read_sidecar(sidecar, file)
    if out.resolve() in {path.resolve() for path in (*file.paths, sidecar)}:
        raise KvarnError(f"cannot write {out}: it is being read; give another name")
    with new_file(out) as part:
        _write(part, file, learned)


def _write(path: Path, file: GGUFFile, learned: Learned) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, file.architecture)
    writer.data_alignment = file.alignment
    for key in file.metadata:
        if not key.startswith(_WRITTEN) and not is_hash_key(key):
            _copy_value(writer, file, key)
    add_embedded(writer, learned)
    for tensor in file.tensors.values():
        kind = gguf.GGMLQuantizationType(tensor.type.ggml_id)
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_value(writer: Any, file: GGUFFile, key: str) -> None:
    """One metadata value, of the type that it has in the source."""
    import gguf

    entry = file.metadata.entry(key)
    value = _plain(file.metadata[key])
    kind = gguf.GGUFValueType(int(entry.kind))
    if entry.item is None:
        writer.add_key_value(key, value, kind)
    elif value:  # gguf-py cannot write an empty array, nor a reader miss one
        writer.add_key_value(key, value, kind, gguf.GGUFValueType(int(entry.item)))


def _plain(value: Any) -> Any:
    """Numbers as Python's, text as the bytes of the file, which need not be UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
