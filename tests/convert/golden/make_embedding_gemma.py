"""Writes embedding_gemma.json: vectors of a tiny stored model by transformers, pooled and projected
as sentence-transformers does.

Made with transformers 5.24 and torch 2.13: `python -m tests.convert.golden.make_embedding_gemma`.
Needs none of kvarn.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModel

from tests.convert import gemma_folders


def main() -> None:
    """Make the file."""
    with tempfile.TemporaryDirectory() as name:
        folder = gemma_folders.write(Path(name))
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        dense = [
            load_file(folder / part / "model.safetensors")["linear.weight"]
            for part in ("2_Dense", "3_Dense")
        ]
        vectors = []
        for ids in gemma_folders.IDS:
            with torch.no_grad():
                x = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
                for weight in dense:
                    x = weight @ x
            vectors.append([round(float(value), 6) for value in x / x.norm()])
    Path(__file__).with_name("embedding_gemma.json").write_text(json.dumps(vectors) + "\n")


if __name__ == "__main__":
    main()
