"""Hash encoders inside a model file: one file to share, which llama.cpp loads like any other.

llama.cpp refuses tensors that it does not know and ignores such metadata. So the encoders go there,
one base64 string a layer (see `runtime.attend.encoders.sidecar`).
"""

from __future__ import annotations

from pathlib import Path

from ..runtime.attend.encoders.sidecar import embedded_values, read_sidecar
from ..runtime.gguf import open_gguf
from ..system.errors import KvarnError
from ..system.files import check_target, new_file
from .writing import TensorPlan, copied_metadata, header, pad, value_bytes


def embed_encoders(model: Path, sidecar: Path, out: Path) -> None:
    """Write a copy of a model file, split or not, that holds the encoders of a sidecar.

    They replace encoders that the model holds already. `out` is written whole or not at all.
    Raises `AttendError` for a sidecar that is damaged or another model's, `GGUFError` for a file
    that cannot be read, `KvarnError` where `out` is one of the files that are read, and
    `FileRefused` where it is no name of a file to write.
    """
    check_target(out)
    file = open_gguf(model)
    learned = read_sidecar(sidecar, file)
    if out.resolve() in {path.resolve() for path in (*file.paths, sidecar)}:
        raise KvarnError(f"cannot write {out}: it is being read; give another name")
    added = {key: value_bytes(value) for key, value in embedded_values(learned).items()}
    plans = [TensorPlan(t.name, t.type.name, t.shape) for t in file.tensors.values()]
    with new_file(out) as part, part.open("r+b") as copy:
        copy.write(header(copied_metadata(file.metadata) | added, plans, file.alignment))
        for tensor in file.tensors.values():
            copy.write(tensor.data.data)
            pad(copy, file.alignment)
