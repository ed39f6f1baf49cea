"""Write nomic.json: keys and tensors that llama.cpp's converter makes of tiny NomicBERT models.

Made with the converter packaged with llama-cpp-python 0.3.36:
`python -m tests.convert.golden.make_nomic FOLDER_OF_LLAMA_CPP`. Needs none of kvarn.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.convert.stored_models import described


def main() -> None:
    """Make the file."""
    llama_cpp = sys.argv[1]
    sys.path[:0] = [str(Path(llama_cpp) / "gguf-py"), llama_cpp]
    from tests.convert import nomic_folders  # after the path: it imports gguf

    made = {}
    for case, kind in ((nomic_folders.CASE, "Unigram"), (nomic_folders.DENSE, "WordPiece")):
        with tempfile.TemporaryDirectory() as folder:
            nomic_folders.write(Path(folder), case)
            made[case.architecture] = _converted(Path(folder), kind)
    Path(__file__).with_name("nomic.json").write_text(json.dumps(made, indent=1) + "\n")


def _converted(folder: Path, kind: str) -> dict[str, Any]:
    import gguf
    from conversion.bert import NomicBertModel

    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": kind, "vocab": {}}}))
    NomicBertModel.set_vocab = lambda self: None
    out = folder / "out.gguf"
    # transformers would add the sizes of v1 by its own names.
    hparams = json.loads((folder / "config.json").read_text())
    with torch.inference_mode():
        kind_of_file = gguf.LlamaFileType.ALL_F32
        NomicBertModel(folder, kind_of_file, out, eager=True, hparams=hparams).write()
    reader = gguf.GGUFReader(out)
    others = ("general.", "tokenizer.", "GGUF.")
    keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith(others)}
    tensors = {
        t.name: described(t.name, t.tensor_type.name, t.data, t.shape.tolist()[::-1])
        for t in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


if __name__ == "__main__":
    main()
