"""Importance matrices: llama.cpp's sums, and its two file formats."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.quantize.imatrix import read_imatrix, write_imatrix
from kvarn.convert.quantize.observe import Observer
from kvarn.models.workspace import Routed
from kvarn.runtime.gguf import GGUFError
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model

from ...models import tiny_cases, tiny_models
from ...models.tiny_models import finish
from . import models
from .models import Sizes

TEXT = "The mill stood by the river, and the wheel turned all day. " * 20


def collected(model: Model, n_ctx: int, max_chunks: int | None = None) -> Observer:
    observer = Observer(model, n_ctx)
    ids = model.tokenizer.encode(TEXT, bos=model.tokenizer.add_bos)
    for _ in observer.read(ids, max_chunks):
        pass
    return observer


def test_sums_are_those_of_llama_cpp(tiny_path: Path, tiny: Model, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from . import llama_inputs

    path = tmp_path / "out.gguf"
    collected(tiny, 64, 3).save(path, ["text"])
    ids = tiny.tokenizer.encode(TEXT, bos=tiny.tokenizer.add_bos)
    pieces = [ids[i * 64 : (i + 1) * 64] for i in range(3)]
    if tiny.tokenizer.add_bos:
        pieces = [[tiny.tokenizer.bos_id, *piece[1:]] for piece in pieces]
    expected = llama_inputs.means(tiny_path, pieces)
    read_back = read_imatrix(path)
    assert read_back.means.keys() == expected.keys()
    assert len(expected) == 7 * tiny.config.n_layers
    for name, (sums, counts) in expected.items():
        assert counts == 192
        # Weights of F16: llama.cpp rounds the inputs to F16 too, which shows in those that follow.
        np.testing.assert_allclose(read_back.means[name], sums / 192, rtol=5e-3, err_msg=name)


EXPERTS = ["qwen3moe", "gpt-oss", "gemma4-experts", "laguna", "deepseek2"]


@pytest.mark.parametrize("name", ["phi3-short", "gemma2", "cohere2", *EXPERTS])
def test_sums_of_other_architectures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused matrices, norms after them, halves side by side; routed experts, each by itself."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from . import llama_inputs

    case = next(case for case in tiny_cases.CASES if case.name == name)
    # A seed at which no router comes near a tie.
    tiny_models.write(tmp_path / "tiny.gguf", case, seed=5)
    model = load(tmp_path / "tiny.gguf")
    monkeypatch.setitem(model.__dict__, "tokenizer", SimpleNamespace(add_bos=False))
    ids = [7 * i % case.n_vocab for i in range(64)]
    observer = Observer(model, 32)
    assert list(observer.read(ids)) == [(1, 2), (2, 2)]
    observer.save(tmp_path / "out.gguf", [])
    expected = llama_inputs.means(tmp_path / "tiny.gguf", [ids[:32], ids[32:]])
    written = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert written.keys() == {f"{x}.{part}" for x in expected for part in ("in_sum2", "counts")}
    for tensor, (sums, counts) in expected.items():
        np.testing.assert_array_equal(written[f"{tensor}.counts"][:, 0], counts, tensor)
        close = written[f"{tensor}.in_sum2"]
        assert close.shape == sums.shape
        np.testing.assert_allclose(close, sums, rtol=2e-2, atol=1e-3 * sums.mean(), err_msg=tensor)


def test_files_are_llama_cpps(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    observer = collected(tiny, 32, 4)
    observer.save(path, ["a.txt", "b.txt"])
    reader = gguf.GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items() if "GGUF." not in key}
    assert keys == {
        "general.type": "imatrix",
        "imatrix.datasets": ["a.txt", "b.txt"],
        "imatrix.chunk_count": 4,
        "imatrix.chunk_size": 32,
    }
    assert reader.fields["imatrix.chunk_size"].types == [gguf.GGUFValueType.UINT32]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    counts = tensors["blk.0.attn_q.weight.counts"]
    assert counts.shape.tolist() == [1, 1] and counts.data.item() == 128
    sums = tensors["blk.1.ffn_down.weight.in_sum2"]
    assert sums.shape.tolist() == [96, 1] and sums.tensor_type == gguf.GGMLQuantizationType.F32
    read = read_imatrix(path)
    assert (read.datasets, read.n_chunks) == (("a.txt", "b.txt"), 4)
    np.testing.assert_array_equal(read.means["blk.1.ffn_down.weight"], sums.data / np.float32(128))


def test_llama_cpp_takes_them(tmp_path: Path) -> None:
    """With them it makes other bytes than without."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from . import ggml

    source, plain, weighed = (tmp_path / f"{name}.gguf" for name in ("source", "plain", "weighed"))
    models.write(source, Sizes(n_layers=1))
    rng = np.random.default_rng(0)
    names = [name for name, shape in models.shapes(Sizes(n_layers=1)).items() if len(shape) > 1]
    sums = {name: rng.gamma(0.5, 1, (1, 256)) for name in names}
    write_imatrix(tmp_path / "im.gguf", sums, dict.fromkeys(names, np.array([512])), ["t"], 1, 512)
    means = {name: m[0].copy() for name, m in read_imatrix(tmp_path / "im.gguf").means.items()}
    ggml.quantise_file(source, plain, gguf.LlamaFileType.MOSTLY_Q4_K_S)
    ggml.quantise_file(source, weighed, gguf.LlamaFileType.MOSTLY_Q4_K_S, means)
    before, after = (
        {t.name: t.data for t in gguf.GGUFReader(path).tensors} for path in (plain, weighed)
    )
    for name in names:
        assert (before[name] != after[name]).any(), name


def test_fused_matrices_are_seen_once(tiny: Model, tmp_path: Path) -> None:
    observer = Observer(tiny, 16)
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    for part in ("[0]", "[1]", "[2]"):
        observer.see(x, f"blk.0.attn_qkv.weight{part}", None)
    observer.save(tmp_path / "out.gguf", [])
    means = read_imatrix(tmp_path / "out.gguf").means
    assert list(means) == ["blk.0.attn_qkv.weight"]
    np.testing.assert_allclose(means["blk.0.attn_qkv.weight"][0], (x * x).mean(axis=0), rtol=1e-6)


def test_nobody_watches_afterwards(tiny: Model) -> None:
    observer = Observer(tiny, 32)
    reading = observer.read(tiny.tokenizer.encode(TEXT), None)
    next(reading)
    seen = {name: count.item() for name, count in observer._counts.items()}
    assert seen
    tiny.context(64).prefill([5] * 20)
    assert all(observer._counts[name] > n for name, n in seen.items())  # still being read
    reading.close()
    seen = {name: count.item() for name, count in observer._counts.items()}
    tiny.context(64).prefill([5] * 20)
    assert observer._counts == seen


def test_single_tokens_are_seen_too_and_have_the_same_bits(tiny: Model) -> None:
    plain, watched, seen = tiny.context(64), tiny.context(64), []
    for context in (plain, watched):
        context.prefill([1, 2, 3])
        context.decode(4)
    with tiny.transformer.watch(lambda x, name, _: seen.append((name, len(x)))):
        logits = watched.decode(5)
    np.testing.assert_array_equal(plain.decode(5), logits)
    n_layers = tiny.config.n_layers
    assert len(seen) == 7 * n_layers + 1 and {rows for _, rows in seen} == {1}
    np.testing.assert_array_equal(plain.decode(6), watched.decode(6))
    assert len(seen) == 7 * n_layers + 1


def test_texts_that_are_too_short(tiny: Model) -> None:
    with pytest.raises(ConvertError, match="less than one piece of 64"):
        next(Observer(tiny, 64).read([1] * 63))


def dat(entries: list[tuple[str, int, list[float]]], tail: bytes = b"") -> bytes:
    """A file from before GGUF."""
    parts = [struct.pack("<i", len(entries))]
    for name, calls, values in entries:
        parts.append(struct.pack("<i", len(name)) + name.encode())
        parts.append(struct.pack("<ii", calls, len(values)))
        parts.append(struct.pack(f"<{len(values)}f", *values))
    return b"".join(parts) + tail


@pytest.mark.parametrize("tail", [b"", struct.pack("<i", 9), struct.pack("<ii", 9, 4) + b"wiki"])
def test_files_from_before_gguf(tail: bytes, tmp_path: Path) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(dat([("blk.0.attn_q.weight", 4, [4.0, 8.0]), ("b", 1, [3.0])], tail))
    read_back = read_imatrix(path)
    np.testing.assert_array_equal(read_back.means["blk.0.attn_q.weight"], [[1, 2]])
    np.testing.assert_array_equal(read_back.means["b"], [[3]])
    assert read_back.n_chunks == (9 if tail else 0)
    assert read_back.datasets == (("wiki",) if len(tail) > 4 else ())


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    whole = dat([("blk.0.attn_q.weight", 4, [4.0, 8.0])])
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(ConvertError):
            read_imatrix(path)
    for values in ([1.0, -1.0], [np.nan], [np.inf]):
        path.write_bytes(dat([("x", 1, values)]))
        with pytest.raises(ConvertError, match="expected mean squares"):
            read_imatrix(path)
    path.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(GGUFError):
        read_imatrix(path)


def test_other_gguf_files_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="another kind"):
        read_imatrix(tiny_path)
    path = tmp_path / "bad.gguf"
    for tensors, message in (
        ({"x.in_sum2": np.ones((1, 4), np.float32)}, "tensor x.counts: found no such tensor"),
        (
            {"x.in_sum2": np.ones((1, 4), np.float16), "x.counts": np.ones((1, 1), np.float32)},
            "found F16, expected F32",
        ),
        (
            {"x.in_sum2": np.ones((3, 4), np.float32), "x.counts": np.ones((2, 1), np.float32)},
            "2 counts for 3 matrices",
        ),
        ({"y": np.ones((1, 4), np.float32)}, "of no tensors"),
    ):
        writer = gguf.GGUFWriter(path, "none")
        writer.add_type("imatrix")
        for name, values in tensors.items():
            writer.add_tensor(name, values)
        finish(writer)
        with pytest.raises(ConvertError, match=message):
            read_imatrix(path)


def test_experts_without_tokens_count_as_all_alike(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    writer = gguf.GGUFWriter(path, "none")
    writer.add_type("imatrix")
    sums = np.array([[2, 4], [0, 0]], np.float32)
    writer.add_tensor("x.in_sum2", sums)
    writer.add_tensor("x.counts", np.array([[2], [0]], np.float32))
    finish(writer)
    np.testing.assert_array_equal(read_imatrix(path).means["x"], [[1, 2], [1, 1]])


def test_watching_changes_no_result(tiny_path: Path, tiny: Model) -> None:
    ids = tiny.tokenizer.encode(TEXT)[:40]
    expected = load(tiny_path).context(64).prefill(ids)
    collected(tiny, 32, 1)
    np.testing.assert_array_equal(tiny.context(64).prefill(ids), expected)


def test_experts_are_summed_as_by_a_loop(tiny: Model, tmp_path: Path) -> None:
    """And one that no token chose has a count of 0, so that all its columns count alike."""
    observer, rng = Observer(tiny, 16), np.random.default_rng(0)
    sums, counts = np.zeros((4, 32)), np.zeros(4)
    for n in (1, 40):  # llama.cpp leaves few rows out of other matrices alone
        x, ids = rng.standard_normal((n, 32)).astype(np.float32), rng.choice([0, 1, 3], n)
        observer.see(x, "blk.0.ffn_up_exps.weight", Routed(np.sort(ids), 4))
        for row, e in zip(x, np.sort(ids), strict=True):
            sums[e] += row.astype(np.float64) ** 2
            counts[e] += 1
    assert observer.unseen == (1, 4)
    observer.save(path := tmp_path / "out.gguf", [])
    written = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    np.testing.assert_array_equal(written["blk.0.ffn_up_exps.weight.counts"], counts[:, None])
    close = written["blk.0.ffn_up_exps.weight.in_sum2"]
    np.testing.assert_allclose(close, sums, rtol=1e-6)
    means = read_imatrix(path).means["blk.0.ffn_up_exps.weight"]
    np.testing.assert_array_equal(means[2], 1)
    np.testing.assert_allclose(means[[0, 1, 3]], (sums / counts[:, None].clip(1))[[0, 1, 3]], 1e-6)
