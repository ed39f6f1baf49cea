"""The model file that comes with the package: there, small, and readable without torch."""

from pathlib import Path

import gguf
import numpy as np
import pytest

FILE = Path(__file__).resolve().parents[2] / "mini" / "kvarn-mini.gguf"


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(FILE)


def test_is_at_most_6_megabytes() -> None:
    assert FILE.stat().st_size <= 6_000_000


def test_says_what_it_is(reader: gguf.GGUFReader) -> None:
    value = {key: field.contents() for key, field in reader.fields.items()}
    assert value["general.architecture"] == "cohere2"
    assert value["general.name"] == "kvarn-mini"
    assert value["general.license"] == "mit"
    assert "public-domain" in value["general.description"]
    assert value["cohere2.attention.sliding_window"] == 128


def test_weights_are_finite_and_of_the_declared_shape(reader: gguf.GGUFReader) -> None:
    def number(key: str) -> int:
        return int(reader.fields[f"cohere2.{key}"].contents())

    shapes = {t.name: tuple(int(n) for n in t.shape) for t in reader.tensors}
    assert shapes["token_embd.weight"] == (number("embedding_length"), number("vocab_size"))
    assert len(shapes) == 2 + 8 * number("block_count")
    for tensor in reader.tensors:
        assert np.isfinite(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).all()


def test_llama_cpp_continues_a_sentence_in_english() -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="the oracle, llama-cpp-python, is absent")
    llama = llama_cpp.Llama(str(FILE), n_ctx=256, n_threads=1, verbose=False)
    text = llama("It was a cold evening, and the", max_tokens=60, temperature=0.0)
    words = text["choices"][0]["text"].lower().split()
    common = {"the", "a", "and", "of", "to", "was", "he", "she", "his", "her", "in", "it", "had"}
    assert len(words) > 20
    assert sum(w.strip('.,;!?"') in common for w in words) > len(words) / 5
