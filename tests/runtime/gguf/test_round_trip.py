"""What gguf-py writes is what the reader finds."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.ops.types import QUANT_TYPES
from kvarn.runtime.gguf import open_gguf

from ...models.tiny_models import finish

RANGES = {
    Kind.UINT8: (0, 2**8 - 1),
    Kind.INT8: (-(2**7), 2**7 - 1),
    Kind.UINT16: (0, 2**16 - 1),
    Kind.INT16: (-(2**15), 2**15 - 1),
    Kind.UINT32: (0, 2**32 - 1),
    Kind.INT32: (-(2**31), 2**31 - 1),
    Kind.UINT64: (0, 2**64 - 1),
    Kind.INT64: (-(2**63), 2**63 - 1),
}
ITEMS: dict[Kind, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in RANGES.items()},
    Kind.FLOAT32: st.floats(width=32),
    Kind.FLOAT64: st.floats(),
    Kind.BOOL: st.booleans(),
    Kind.STRING: st.text(st.characters(codec="utf-8"), max_size=300),
}
NAMES = st.text(st.characters(codec="utf-8"), max_size=16).filter(
    lambda name: not name.startswith(("split.", "general."))  # these mean something to the reader
)
SCALARS = st.sampled_from(sorted(ITEMS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.none(), ITEMS[kind])
)
ARRAYS = st.sampled_from(sorted(ITEMS)).flatmap(
    lambda kind: st.tuples(
        st.just(Kind.ARRAY), st.just(kind), st.lists(ITEMS[kind], min_size=1, max_size=40)
    )
)
TENSORS = st.tuples(
    st.sampled_from(sorted(QUANT_TYPES)), st.lists(st.integers(1, 4), min_size=1, max_size=4)
)
TYPES = {
    Kind.FLOAT32: np.float32,
    Kind.FLOAT64: np.float64,
    Kind.BOOL: np.bool_,
    **{kind: np.dtype(kind.name.lower()).type for kind in RANGES},
}


def same(value_read: Any, wrote: Any) -> bool:
    if isinstance(wrote, float):
        return math.isnan(value_read) if math.isnan(wrote) else value_read == wrote
    return type(value_read) is type(wrote) and value_read == wrote


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(NAMES, SCALARS | ARRAYS, max_size=12),
    st.dictionaries(NAMES, TENSORS, max_size=6),
    st.sampled_from([8, 32, 64, 4096]),
    st.randoms(use_true_random=False),
)
def test_any_file_of_gguf_py(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], alignment: int, rng: Any
) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, (kind, item, content) in metadata.items():
        writer.add_key_value(key, content, kind, item)
    arrays = {}
    for name, (type_name, dims) in tensors.items():
        quant_type = QUANT_TYPES[type_name]
        shape = (*dims[:-1], dims[-1] * quant_type.n_bytes)
        arrays[name] = np.frombuffer(rng.randbytes(math.prod(shape)), np.uint8).reshape(shape)
        raw = gguf.GGMLQuantizationType[type_name]
        writer.add_tensor(name, arrays[name], raw_dtype=raw)
    finish(writer)

    with open_gguf(path) as file:
        assert file.version == 3
        assert file.alignment == alignment
        assert list(file.metadata) == ["general.architecture", "general.alignment", *metadata]
        for key, (kind, item, content) in metadata.items():
            value_read = file.metadata[key]
            if kind != Kind.ARRAY:
                assert same(value_read, content), key
            elif item == Kind.STRING:
                assert value_read == content
            else:
                assert value_read.dtype == TYPES[item]
                np.testing.assert_array_equal(value_read, np.array(content, TYPES[item]))
        assert list(file.tensors) == list(tensors)
        for name, (type_name, dims) in tensors.items():
            tensor = file.tensors[name]
            assert tensor.type.name == type_name
            assert tensor.shape == (*dims[:-1], dims[-1] * tensor.type.block)
            assert tensor.n_bytes == arrays[name].nbytes
            np.testing.assert_array_equal(tensor.data, arrays[name])
            assert tensor.offset % alignment == 0


@pytest.mark.data
@pytest.mark.parametrize("pattern", ["vocab/*-bert-bge.gguf", "weights/*/*-f32.gguf"])
def test_real_files_as_gguf_py_reads_them(data_dir: Path, pattern: str) -> None:
    paths = [
        path for path in sorted(data_dir.glob(pattern)) if path.stat().st_size < 1_200_000
    ]  # gguf-py is slow
    assert paths
    for path in paths:
        if path.name.startswith("tinyllamas"):
            continue  # version 1, which gguf-py does not read
        theirs = gguf.GGUFReader(path)
        with open_gguf(path) as file:
            for key, field in theirs.fields.items():
                if not key.startswith("GGUF."):
                    value_read = file.metadata[key]
                    assert (
                        value_read.tolist() if isinstance(value_read, np.ndarray) else value_read
                    ) == (field.contents()), key
            assert list(file.tensors) == [tensor.name for tensor in theirs.tensors]
            for tensor in theirs.tensors:
                assert file.tensors[tensor.name].shape == tuple(tensor.shape[::-1].tolist())
                assert file.tensors[tensor.name].data.tobytes() == tensor.data.tobytes()


@pytest.mark.data
def test_version_1_holds_what_its_version_3_holds(data_dir: Path) -> None:
    folder = data_dir / "weights" / "stories260K"
    with (
        open_gguf(folder / "tinyllamas-stories-260k-f32.gguf") as old,
        open_gguf(folder / "stories260K-f32.gguf") as new,
    ):
        assert (old.version, new.version) == (1, 3)
        assert old.architecture == "llama"
        assert len(old.metadata["tokenizer.ggml.tokens"]) == 512
        assert old.get("llama.embedding_length", int) == 64
        shared = old.tensors.keys() & new.tensors.keys()
        assert len(shared) == len(new.tensors)
        for name in shared:
            assert old.tensors[name].shape == new.tensors[name].shape
            assert old.tensors[name].data.shape == new.tensors[name].data.shape


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is in memory")
def test_a_released_tensor_leaves_memory_and_can_be_read_again(tmp_path: Path) -> None:
    path, values = tmp_path / "model.gguf", np.arange(1 << 20, dtype=np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("first", values)
    finish(writer)
    tensor = open_gguf(path).tensors["first"]

    def resident() -> int:
        """KiB of the mapped file that this process has in its memory."""
        _, _, entry = Path("/proc/self/smaps").read_text().partition(f"{path}\n")
        return int(entry.partition("Rss:")[2].split()[0])

    np.testing.assert_array_equal(tensor.data.view(np.float32), values)
    before = resident()
    tensor.release()
    assert before >= 4096
    assert resident() <= 1024
    np.testing.assert_array_equal(tensor.data.view(np.float32), values)
