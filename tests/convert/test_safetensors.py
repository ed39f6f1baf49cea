"""Safetensors files: what the library writes is read, and what is damaged is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.files.folder import read_tensors
from kvarn.convert.hf.files.safetensors import read_header

from . import hf_folders


def test_what_the_library_writes(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="the oracle, safetensors, is absent")
    rng = np.random.default_rng(0)
    tensors = {
        "single": rng.standard_normal((5, 7)).astype(np.float32),
        "half": rng.standard_normal((3, 4)).astype(np.float16),
        "double": rng.standard_normal(6),
        "numbers": np.arange(4),
    }
    library.save_file(tensors, tmp_path / "x.safetensors", {"format": "np"})
    stored = read_header(tmp_path / "x.safetensors")
    assert stored.keys() == tensors.keys()
    for name in ("single", "half", "double"):
        rows = stored[name].rows(0, stored[name].n_rows)
        np.testing.assert_array_equal(rows, tensors[name].astype(np.float32).reshape(rows.shape))
    np.testing.assert_array_equal(stored["single"].rows(2, 4), tensors["single"][2:4])
    with pytest.raises(ConvertError, match="stored as I64"):
        stored["numbers"].rows(0, 1)


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.5, 3e38, 1e-40, 0.0, np.inf]], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    hf_folders.write_safetensors(tmp_path / "x.safetensors", {"x": upper})
    rows = read_header(tmp_path / "x.safetensors")["x"].rows(0, 1)
    np.testing.assert_array_equal(rows.view(np.uint32), upper.astype(np.uint32) << 16)


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    one, two = ({name: np.ones((2, 2), np.float32)} for name in ("a", "b"))
    hf_folders.write_safetensors(tmp_path / "model-00001-of-00002.safetensors", one)
    second = tmp_path / "model-00002-of-00002.safetensors"
    hf_folders.write_safetensors(second, two)
    # Mistral's second copy of the weights is not looked at.
    hf_folders.write_safetensors(tmp_path / "consolidated.safetensors", one)
    index = {"a": "model-00001-of-00002.safetensors", "b": second.name}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    assert read_tensors(tmp_path).keys() == {"a", "b"}
    path.write_text(json.dumps({"weight_map": index | {"c": second.name}}))
    with pytest.raises(ConvertError, match="lists c"):
        read_tensors(tmp_path)
    second.unlink()
    with pytest.raises(ConvertError, match="lacks 1 of 2 shards, as model-00002"):
        read_tensors(tmp_path)
    path.write_text("{}")
    with pytest.raises(ConvertError, match="no weight_map"):
        read_tensors(tmp_path)


def test_pickles_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="no model"):
        read_tensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConvertError, match=r"pickles .*spaces/safetensors/convert"):
        read_tensors(tmp_path)


@given(st.data())
def test_damaged_files_are_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "model.safetensors"
    hf_folders.write_safetensors(path, {"a": np.ones((2, 3), np.float32), "b": np.ones(2)})
    raw = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        for tensor in read_header(path).values():
            if tensor.shape:
                tensor.rows(0, tensor.n_rows)
    except ConvertError as error:
        assert path.name in str(error)
