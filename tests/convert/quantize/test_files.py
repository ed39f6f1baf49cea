"""GGUF to GGUF: what is written, and what is refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from kvarn.convert.errors import ConvertError
from kvarn.convert.quantize import encode
from kvarn.convert.quantize.files import quantise_file
from kvarn.convert.quantize.imatrix import Imatrix
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.loading.load import load
from kvarn.system.errors import KvarnError
from lab.peers.model import Shape, write_model

from ...runtime.gguf import gguf_bytes
from . import models
from .models import Sizes, data_of, decoded


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.gguf"
    models.write(path, Sizes(n_layers=3), extra={"odd.weight": (3, 250)})
    return path


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.F16, GGMLType.BF16])
@pytest.mark.parametrize("mix", ["q8_0", "f16", "bf16", "f32"])
def test_simple_types_are_written_as_llama_cpp_writes_them(
    kind: GGMLType, mix: str, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from . import ggml

    source, ours, theirs = (tmp_path / f"{name}.gguf" for name in ("source", "ours", "theirs"))
    models.write(source, Sizes(n_layers=2, n_experts=2), kind)
    quantise_file(source, ours, mix_of(mix))
    ggml.quantise_file(source, theirs, mix_of(mix).file_type)
    written, expected = data_of(ours), data_of(theirs)
    assert written.keys() == expected.keys()
    for name, data in expected.items():
        np.testing.assert_array_equal(written[name], data, name)
    fields, wanted = (gguf.GGUFReader(path).fields for path in (ours, theirs))
    described = [{k: (f.types, f.contents()) for k, f in x.items()} for x in (fields, wanted)]
    for both in described:
        for key in ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"):
            both.pop(key)
    assert described[0] == described[1]


@pytest.mark.parametrize("mix", ["q4_k_m", "q2_k", "q5_0"])
def test_matrices_are_encoded_and_the_rest_is_kept(mix: str, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    report = quantise_file(source, target, mix_of(mix))
    before, after, types = decoded(source), data_of(target), models.types_of(target)
    assert list(before) == list(after)
    for name, values in before.items():
        if types[name] in ("F32", "F16"):
            np.testing.assert_array_equal(after[name], data_of(source)[name])
        else:
            rows = values.astype(np.float32)
            np.testing.assert_array_equal(after[name], encode(rows, types[name]), name)
    assert report.n_bytes == target.stat().st_size
    assert sum(report.types.values()) == len(after)


def test_rows_that_blocks_do_not_divide_are_counted(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    assert quantise_file(source, target, mix_of("q4_k_m")).n_odd == 1
    assert models.types_of(target)["odd.weight"] == "F16"
    assert quantise_file(source, target, mix_of("bf16")).n_odd == 0


def test_shards_become_one_file(source: Path, tmp_path: Path) -> None:
    whole, joined = tmp_path / "whole.gguf", tmp_path / "joined.gguf"
    models.write(tmp_path / "split.gguf", Sizes(n_layers=3), split_tensors=7)
    models.write(tmp_path / "one.gguf", Sizes(n_layers=3))
    shards = sorted(tmp_path.glob("split-*.gguf"))
    assert len(shards) > 2
    quantise_file(tmp_path / "one.gguf", whole, mix_of("q4_k_s"))
    quantise_file(shards[1], joined, mix_of("q4_k_s"))
    written, expected = data_of(joined), data_of(whole)
    assert list(written) == list(expected)
    for name, data in expected.items():
        np.testing.assert_array_equal(written[name], data)
    assert not any(key.startswith("split.") for key in gguf.GGUFReader(joined).fields)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_metadata_of_every_type_and_version_survive(version: int, tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    source.write_bytes(gguf_bytes.sample(version))
    quantise_file(source, target, mix_of("f16"), allow_requantise=True)
    with open_gguf(source) as before, open_gguf(target) as after:
        assert after.version == 3
        for key in before.metadata:
            np.testing.assert_equal(after.metadata[key], before.metadata[key])
            assert after.metadata.entry(key).type_name == before.metadata.entry(key).type_name
        added = set(after.metadata) - set(before.metadata)
        assert added == {"general.file_type", "general.quantization_version"}


def test_importances_of_each_expert_are_used(tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    models.write(source, Sizes(n_layers=1, n_experts=2))
    name = "blk.0.ffn_up_exps.weight"
    rng = np.random.default_rng(0)
    means = {name: rng.gamma(0.5, 1, (2, 256)).astype(np.float32)}
    imatrix = Imatrix(means, ("text.txt", "other"), 7)
    report = quantise_file(source, target, mix_of("q4_k_s"), (Path("some.imatrix"), imatrix))
    x = decoded(source)[name].astype(np.float32)
    for expert in (0, 1):
        expected = encode(x[expert], "Q4_K", means[name][expert])
        np.testing.assert_array_equal(data_of(target)[name][expert], expected)
    assert name not in report.unweighted and "blk.0.attn_q.weight" in report.unweighted
    with open_gguf(target) as file:
        keys = {key: file.metadata[key] for key in file.metadata if "imatrix" in key}
    assert keys == {
        "quantize.imatrix.file": "some.imatrix",
        "quantize.imatrix.dataset": "text.txt",
        "quantize.imatrix.entries_count": 1,
        "quantize.imatrix.chunks_count": 7,
    }


def test_importances_of_another_model_are_refused(source: Path, tmp_path: Path) -> None:
    imatrix = Imatrix({"blk.0.attn_q.weight": np.ones((1, 255), np.float32)})
    with pytest.raises(ConvertError, match=r"attn_q.weight: found importances \(1, 255\)"):
        quantise_file(source, tmp_path / "out.gguf", mix_of("q4_k_m"), (Path("i"), imatrix))
    assert not (tmp_path / "out.gguf").exists()


def test_quantised_matrices_are_not_taken_unasked(tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    models.write(source, Sizes(n_layers=1), GGMLType.Q8_0)
    with pytest.raises(ConvertError, match=r"quantised already \(Q8_0\).*--allow-requantize"):
        quantise_file(source, target, mix_of("q4_k_m"))
    assert not target.exists()
    quantise_file(source, target, mix_of("q8_0"))  # nothing is decoded
    np.testing.assert_equal(data_of(target), data_of(source))
    quantise_file(source, target, mix_of("q4_k_m"), allow_requantise=True)
    name = "blk.0.attn_q.weight"
    expected = encode(decoded(source)[name], "Q4_K")
    np.testing.assert_array_equal(data_of(target)[name], expected)


def test_types_without_kernels_are_decoded_too(tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    models.write(source, Sizes(n_layers=1), GGMLType.TQ2_0)
    quantise_file(source, target, mix_of("q8_0"), allow_requantise=True)
    name = "blk.0.ffn_up.weight"
    np.testing.assert_array_equal(data_of(target)[name], encode(decoded(source)[name], "Q8_0"))


def test_bad_weights_are_named(tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    models.write(source, Sizes(n_layers=1))
    data = bytearray(source.read_bytes())
    with open_gguf(source) as file:
        at = file.tensors["blk.0.ffn_up.weight"].offset + 2 * (1 * 256 + 5)
    data[at : at + 2] = np.float16(np.nan).tobytes()
    source.write_bytes(data)
    with pytest.raises(ConvertError, match=r"blk.0.ffn_up.weight.*found nan in row 1, column 5"):
        quantise_file(source, target, mix_of("q4_0"))
    assert list(tmp_path.iterdir()) == [source]


def test_a_vocabulary_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "source.gguf"
    keys = [gguf_bytes.pair("general.architecture", gguf_bytes.STRING, "llama")]
    path.write_bytes(gguf_bytes.build(keys))
    with pytest.raises(ConvertError, match="holds no tensors"):
        quantise_file(path, tmp_path / "out.gguf", mix_of("q8_0"))


def test_a_file_is_not_written_over_itself(source: Path) -> None:
    before = source.read_bytes()
    link = source.with_name("link.gguf")
    link.symlink_to(source)
    for target, why in ((source, "is the file to read from"), (link, "is a symbolic link")):
        with pytest.raises(KvarnError, match=why):
            quantise_file(source, target, mix_of("q8_0"))
    assert source.read_bytes() == before


@pytest.fixture(scope="module")
def runnable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of F16 matrices that can be run."""
    path = tmp_path_factory.mktemp("models") / "f16.gguf"
    sizes = Shape(
        n_layers=2, n_embd=256, n_heads=4, n_kv_heads=2, head_dim=64, n_ff=512, n_vocab=512
    )
    write_model(path, "f16", sizes)
    return path


IDS = list(range(1, 40))


def test_quantised_models_run(runnable: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    quantise_file(runnable, target, mix_of("q4_k_m"))
    exact = load(runnable).context(64).prefill(IDS)
    logits = load(target).context(64).prefill(IDS)
    assert np.corrcoef(exact, logits)[0, 1] > 0.95


@pytest.mark.parametrize("mix", ["q2_k", "q3_k_m", "iq4_nl"])
def test_llama_cpp_runs_them_as_kvarn_does(mix: str, runnable: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from ...models.llama_oracle import oracle

    target = tmp_path / "target.gguf"
    quantise_file(runnable, target, mix_of(mix))
    logits = load(target).context(64).prefill(IDS)
    with oracle(target, 64, 512) as theirs:
        assert np.corrcoef(logits, theirs.forward(IDS)[-1])[0, 1] > 0.999
