"""What a file recommends (`general.sampling.*`) holds where the user says nothing, and is told."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

import kvarn
from kvarn.cli import main
from kvarn.runtime.capi.options import generation_of
from kvarn.runtime.sampling import Sampler, SamplingError
from kvarn.runtime.sampling.stored import stored_options
from kvarn.runtime.serving.prompt import Text
from kvarn.runtime.serving.protocol import Generate
from kvarn.runtime.serving.requests.preparing import RequestPreparer

TYPES = {
    float: gguf.GGUFValueType.FLOAT32,
    int: gguf.GGUFValueType.INT32,
    str: gguf.GGUFValueType.STRING,
}
KEYS = {
    "sequence": "top_k;penalties;temperature",
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.25,
    "xtc_probability": 0.125,
    "xtc_threshold": 0.375,
    "temp": 0.75,
    "penalty_last_n": 9,
    "penalty_repeat": 1.25,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.5,
}
"""The keys of llama.cpp's `llm_kv` that it reads, with values that float32 holds."""
OPTIONS = {
    **{name: value for name, value in KEYS.items() if name in Sampler.__dataclass_fields__},
    "samplers": "top_k;penalties;temperature",
    "repeat_last_n": 9,
    "repeat_penalty": 1.25,
}


def recommending(source: Path, target: Path, keys: dict[str, Any]) -> Path:
    """A copy of a model whose file says how to sample, written by gguf-py."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    new = {f"general.sampling.{k}": MetadataDetails(TYPES[type(v)], v) for k, v in keys.items()}
    copy_with_new_metadata(reader, writer, new, [])
    return target


def test_all_keys_are_heeded_and_told_once(tiny_path: Path, tmp_path: Path) -> None:
    said: list[str] = []
    path = recommending(tiny_path, tmp_path / "m.gguf", KEYS)
    model = kvarn.load(path, notice=said.append)
    assert said == []
    assert model.sampler() == model.sampler() == Sampler(**OPTIONS)
    assert len(said) == 1
    assert "temp 0.75" in said[0] and "top_k 3" in said[0]
    generation = model.context(64).generation("a", 1)
    assert generation.sampler.options == Sampler(**OPTIONS)


def test_what_the_user_says_holds(tiny_path: Path, tmp_path: Path) -> None:
    said: list[str] = []
    path = recommending(tiny_path, tmp_path / "m.gguf", {"temp": 0.75, "top_k": 3})
    model = kvarn.load(path, notice=said.append)
    assert model.sampler(temp=0.8, top_k=0, min_p=0.0) == Sampler(temp=0.8, top_k=0, min_p=0.0)
    assert model.sampler(temp=0.0) == Sampler(temp=0.0, top_k=3)
    assert said == []  # greedy: nothing of the file changes a token
    with pytest.raises(SamplingError, match="top_p is 2"):
        model.sampler(top_p=2)


def test_c_and_servers_take_it_too(tiny_path: Path, tmp_path: Path) -> None:
    model = kvarn.load(recommending(tiny_path, tmp_path / "m.gguf", {"temp": 0.75, "top_k": 3}))
    expected = Sampler(temp=0.75, top_k=5)
    assert generation_of({"top_k": 5}, model)["sampler"] == expected
    preparing = RequestPreparer(model, 64, {}, None)  # type: ignore[arg-type]  # of no chat
    asked = Generate(1, 0, Text("a"), sampling={"top_k": 5})
    assert preparing.generate(asked).sampler == expected


@pytest.mark.parametrize(
    ("key", "value"), [("top_p", 1.5), ("temp", "hot"), ("sequence", "top_q"), ("mirostat", 2.5)]
)
def test_a_value_that_is_none_is_named(key: str, value: Any) -> None:
    metadata = {f"general.sampling.{key}": value}
    with pytest.raises(SamplingError, match=rf"general\.sampling\.{key} of the model's file: "):
        stored_options(metadata, ())
    assert stored_options(metadata, {"top_p", "temp", "samplers", "mirostat"}) == {}


def test_a_whole_number_may_be_a_float() -> None:
    assert stored_options({"general.sampling.top_k": 20.0}, ()) == {"top_k": 20}


def test_the_command_line_says_so(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recommending(tiny_path, tmp_path / "m.gguf", {"temp": 0.75, "top_k": 1})
    line = ["run", "-m", str(path), "-p", "a", "-n", "4"]
    assert main(line) == 0
    told = capsys.readouterr()
    assert "where you say nothing: top_k 1, temp 0.75" in told.err
    assert main([*line, "--temp", "0"]) == 0
    greedy = capsys.readouterr()
    assert greedy.out == told.out and "say nothing" not in greedy.err
