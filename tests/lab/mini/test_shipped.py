"""The model files: there, small, and readable without torch."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from kvarn.runtime.loading.default_model import default_model_path
from lab import mini

FOLDER = Path(mini.__file__).parent
DEFAULT = default_model_path()
SECOND, THIRD = (FOLDER / f"kvarn-mini-{name}.gguf" for name in ("llama", "gqa"))
BLOCK_TENSORS = {"cohere2": 8, "llama": 9}


def values(file: Path) -> dict[str, object]:
    return {key: field.contents() for key, field in gguf.GGUFReader(file).fields.items()}


@pytest.mark.parametrize(
    ("file", "most"), [(DEFAULT, 6_000_000), (SECOND, 8_000_000), (THIRD, 12_000_000)]
)
def test_sizes_are_those_of_a_package(file: Path, most: int) -> None:
    assert file.stat().st_size <= most


@pytest.mark.parametrize(
    ("file", "architecture"), [(DEFAULT, "cohere2"), (SECOND, "llama"), (THIRD, "cohere2")]
)
def test_they_say_what_they_are(file: Path, architecture: str) -> None:
    value = values(file)
    assert value["general.architecture"] == architecture
    assert str(value["general.name"]).startswith("kvarn-mini")
    assert value["general.license"] == "mit"
    assert "public-domain" in str(value["general.description"])
    assert value.get(f"{architecture}.attention.sliding_window") == (
        128 if architecture == "cohere2" else None
    )


@pytest.mark.parametrize("file", [DEFAULT, SECOND, THIRD])
def test_weights_are_finite_and_of_the_declared_shape(file: Path) -> None:
    value, reader = values(file), gguf.GGUFReader(file)
    architecture = str(value["general.architecture"])
    width, n_vocab, n_blocks = (
        value[f"{architecture}.{key}"] for key in ("embedding_length", "vocab_size", "block_count")
    )
    shapes = {t.name: tuple(int(n) for n in t.shape) for t in reader.tensors}
    assert shapes["token_embd.weight"] == (width, n_vocab)
    assert len(shapes) == 2 + BLOCK_TENSORS[architecture] * n_blocks
    for tensor in reader.tensors:
        assert np.isfinite(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).all()


def test_query_heads_of_the_third_share_kv_heads() -> None:
    value = values(THIRD)
    heads, kv_heads = (value[f"cohere2.attention.head_count{end}"] for end in ("", "_kv"))
    assert (heads, kv_heads) == (4, 2)


def test_llama_cpp_continues_a_sentence_in_english() -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="the oracle, llama-cpp-python, is absent")
    llama = llama_cpp.Llama(str(DEFAULT), n_ctx=256, n_threads=1, verbose=False)
    text = llama("It was a cold evening, and the", max_tokens=60, temperature=0.0)
    words = text["choices"][0]["text"].lower().split()
    common = {"the", "a", "and", "of", "to", "was", "he", "she", "his", "her", "in", "it", "had"}
    assert len(words) > 20
    assert sum(w.strip('.,;!?"') in common for w in words) > len(words) / 5
