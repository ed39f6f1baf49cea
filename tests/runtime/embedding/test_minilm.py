"""all-MiniLM-L6-v2, converted here, against what sentence-transformers and tokenizers gave
(golden/make_minilm.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.convert.hf.convert import convert
from kvarn.convert.quantize.mixes import mix_of

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("minilm.json").read_text())


@pytest.mark.data
@pytest.mark.parametrize(("kind", "least"), [("f32", 0.9999), ("q8_0", 0.999)])
def test_vectors_and_ids_are_those_of_sentence_transformers(
    kind: str, least: float, tmp_path: Path
) -> None:
    folder = Path.home() / ".cache" / "kvarn-real" / "all-MiniLM-L6-v2"
    if not folder.is_dir():
        pytest.skip(f"no model in {folder}")
    convert(folder, tmp_path / "minilm.gguf", mix_of(kind))
    model = kvarn.load_embedder(tmp_path / "minilm.gguf")
    assert model.pooling == "mean" and (model.n_embd, model.n_ctx) == (384, 512)
    for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"], strict=True):
        assert model.tokenizer.encode(text, bos=True) == ids
    cosines = np.sum(model.embed(GOLDEN["texts"]) * np.array(GOLDEN["vectors"]), axis=1)
    assert cosines.min() >= least
