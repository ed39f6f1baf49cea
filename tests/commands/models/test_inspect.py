"""`kvarn inspect`: every fact of a file, in text and as JSON, whatever the file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvarn.cli import main
from kvarn.commands.models import inspect
from kvarn.runtime.gguf import open_gguf
from kvarn.system.errors import KvarnError

from ...models import tiny_cases, tiny_models
from ...models.tiny_models import finish
from ...programs import printed
from ...runtime.gguf import gguf_bytes


def write(path: Path, architecture: str = "llama", **tensors: tuple[str, tuple[int, ...]]) -> Path:
    """A llama's metadata and whatever tensors: name=(type, shape in rows and columns)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 256,
        "feed_forward_length": 256,
        "attention.head_count": 2,
    }.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"tok{i}" for i in range(100)])
    writer.add_array("tokenizer.ggml.scores", [0.5, float("-inf"), 2.0])
    writer.add_string("general.name", "red \x1b[31mand\nlong " + "x" * 500)
    for name, (type_name, shape) in tensors.items():
        quant_type = gguf.GGMLQuantizationType[type_name]
        block, n_bytes = gguf.GGML_QUANT_SIZES[quant_type]
        data = np.zeros((*shape[:-1], shape[-1] // block * n_bytes), np.uint8)
        writer.add_tensor(name, data, raw_dtype=quant_type)
    finish(writer)
    return path


def as_json(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    assert main(["inspect", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out, parse_constant=pytest.fail)
    return found


def as_text(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    assert main(["inspect", str(path)]) == 0
    return capsys.readouterr().out


def test_experts_are_read_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.gguf", a=("MXFP4", (5, 16, 32)), b=("MXFP4", (16, 32)))
    found = as_json(capsys, path)
    assert [tensor["treatment"] for tensor in found["tensors"]] == ["native", "repacked"]


def test_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.gguf", a=("Q8_0", (3, 256)), b=("F32", (256,)), c=("Q8_0", (1, 32)))
    found = as_json(capsys, path)
    assert found["file"] == str(path)
    assert found["files"] == ["m.gguf"]
    assert found["version"] == 3
    assert found["n_bytes"] == path.stat().st_size
    assert (found["architecture"], found["supported"], found["reason"]) == ("llama", True, None)
    assert found["n_parameters"] == 3 * 256 + 256 + 32
    q8_0, f32 = 25 * 34, 4 * 256
    assert found["bits_per_weight"] == pytest.approx(8 * (q8_0 + f32) / 1056, abs=1e-4)
    assert [(t["type"], t["n_tensors"], t["n_bytes"]) for t in found["types"]] == [
        ("F32", 1, f32),
        ("Q8_0", 2, q8_0),
    ]
    assert found["types"][1]["bits_per_weight"] == 8.5
    assert found["tensors"][0] == {
        "name": "a",
        "type": "Q8_0",
        "shape": [3, 256],
        "n_parameters": 768,
        "n_bytes": 24 * 34,
        "treatment": found["types"][1]["treatment"],
    }
    metadata = found["metadata"]
    assert metadata["llama.embedding_length"] == 256
    assert metadata["tokenizer.ggml.tokens"] == {
        "type": "string",
        "length": 100,
        "first": [f"tok{i}" for i in range(8)],
    }
    assert metadata["tokenizer.ggml.scores"] == [0.5, "-inf", 2.0]
    assert metadata["general.name"].endswith("x" * 500)


def test_text_is_tidy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.gguf", a=("Q4_K", (3, 256)), long_name_of_a_tensor=("F32", (256,)))
    text = as_text(capsys, path)
    lines = text.splitlines()
    assert all(line.isprintable() for line in lines), "no escape of the file's reaches a terminal"
    for part in (
        "llama",
        "yes",
        "1,024",
        "3 x 256",
        "Q4_K",
        "4.50",
        "432 B",
        "tok0",
        "string[100]",
    ):
        assert part in text
    assert "characters)" in text and "x" * 100 not in text
    header = next(line for line in lines if line.startswith("name "))
    rows = lines[lines.index(header) + 1 :]
    assert {row.index(kind) for row, kind in zip(rows, ("Q4_K", "F32"))} == {header.index("type")}
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 100


@pytest.mark.parametrize(
    ("name", "up_to"), [("phi3-long", 64), ("phi3", None), ("llama-yarn", None)]
)
def test_which_rope_factors_contexts_take(
    name: str, up_to: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(case for case in tiny_cases.CASES if case.name == name)
    tiny_models.write(tmp_path / "m.gguf", case, 1)
    assert as_json(capsys, tmp_path / "m.gguf")["short_factors_up_to"] == up_to
    row = f"short in contexts of up to {up_to} tokens, long in larger ones"
    assert (row in as_text(capsys, tmp_path / "m.gguf")) == (up_to is not None)


@pytest.mark.parametrize(
    ("type_name", "treatment"),
    [("F16", "native"), ("IQ2_XS", "re-encoded"), ("I32", "unsupported")],
)
def test_what_becomes_of_each_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], type_name: str, treatment: str
) -> None:
    path = write(tmp_path / "m.gguf", odd=(type_name, (2, 256)))
    found = as_json(capsys, path)
    assert found["tensors"][0]["treatment"] == found["types"][0]["treatment"] == treatment
    assert found["types"][0]["why"]
    assert found["supported"] == (treatment != "unsupported")
    if not found["supported"]:
        assert "'odd'" in found["reason"] and "I32" in found["reason"]
    assert treatment in as_text(capsys, path)


def test_files_that_are_not_for_us(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.gguf", architecture="mamba", a=("F32", (1,)))
    found = as_json(capsys, path)
    assert not found["supported"] and "mamba" in found["reason"]
    assert "no: " in as_text(capsys, path)
    found = as_json(capsys, write(tmp_path / "vocabulary.gguf"))
    assert found["bits_per_weight"] is None and "vocabulary" in found["reason"]
    as_text(capsys, path)
    bytes_ = gguf_bytes.build([gguf_bytes.pair("general.type", gguf_bytes.STRING, "adapter")])
    path.write_bytes(bytes_)
    found = as_json(capsys, path)
    assert found["architecture"] is None and "'adapter'" in found["reason"]
    assert "not named" in as_text(capsys, path)


@pytest.mark.parametrize(
    ("tensor", "piece"),
    [
        ("blk.0.attn_kv_a_mqa.weight", "latent attention (tensor 'blk.0.attn_kv_a_mqa.weight')"),
        ("blk.3.ssm_d", "state space layers (Mamba) (tensor 'blk.3.ssm_d')"),
        ("enc.blk.0.attn_q.weight", "an encoder (tensor 'enc.blk.0.attn_q.weight')"),
    ],
)
def test_the_first_missing_piece_is_named(
    tensor: str, piece: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    write(path, architecture="other", **{"output.weight": ("F32", (1,)), tensor: ("F32", (1,))})
    found = as_json(capsys, path)
    assert found["reason"] == f"architecture 'other' is unknown to kvarn, and needs {piece}"
    write(path, architecture="other", **{"output.weight": ("F32", (1,))})
    assert as_json(capsys, path)["reason"] == "architecture 'other' is unknown to kvarn"


def test_a_split_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = gguf.GGUFWriter(tmp_path / "s.gguf", "llama", split_max_tensors=1)
    for name in "ab":
        writer.add_tensor(name, np.zeros((1, 4), np.float32))
    finish(writer)
    first = tmp_path / "s-00001-of-00002.gguf"
    assert as_json(capsys, first)["files"] == [first.name, "s-00002-of-00002.gguf"]
    assert "and 1 more" in as_text(capsys, first)


def test_a_bad_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 40)
    assert main(["inspect", str(tmp_path / "bad.gguf")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "n_tensors" in captured.err


@pytest.mark.parametrize("version", [1, 2, 3])
def test_damaged_files_are_shown_or_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "mutant.gguf"
    shown = 0
    for seed in range(200):
        path.write_bytes(gguf_bytes.mutant(gguf_bytes.sample(version), seed))
        try:
            with open_gguf(path) as file:
                description = inspect.describe(file)
        except KvarnError:
            continue
        shown += 1
        json.dumps(description, allow_nan=False)
        assert inspect.render(description).replace("\n", "").isprintable()
    assert shown > 20


def test_a_narrow_terminal_encoding_and_no_numba(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", **{"größe": ("F32", (1,))})
    code = (
        "import sys; from kvarn.cli import main; code = main(['inspect', sys.argv[1]]); "
        "sys.exit(code or 'numba' in sys.modules)"
    )
    assert r"gr\xf6\xdfe" in printed(code, path, env={"PYTHONIOENCODING": "ascii"})
