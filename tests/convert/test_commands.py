"""The three commands of our users, word for word, in an empty directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvarn.cli import main
from kvarn.runtime.home import last_model, last_pull, remember_model, remember_pull

from . import hf_folders
from .hub_server import Hub

REPO = "org/tiny-llama"


def test_three_commands_and_again_offline(at_home: Path, hub: Hub) -> None:
    hf_folders.write_llama(at_home / "saved")
    hub.add_folder(REPO, at_home / "saved")
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(at_home / "hf")}
    texts = []
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        Path("model.gguf").unlink(missing_ok=True)
        for command in (
            ["hf-pull", REPO],
            ["convert", "model.gguf"],
            ["run", "--ctx", "256", "--method", "topk", "-p", "the mill", "-n", "5", "--temp", "0"],
        ):
            done = subprocess.run(
                [sys.executable, "-m", "kvarn", *command],
                env=environment | more, capture_output=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
        assert str(at_home / "work" / "model.gguf").encode() in done.stderr  # says which model
    assert texts[0] == texts[1] != b""
    reader = gguf.GGUFReader("model.gguf")
    assert reader.fields["general.name"].contents() == "Tiny Llama"
    assert reader.fields["general.organization"].contents() == "Org"
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0


def test_every_general_key(at_home: Path) -> None:
    folder = at_home / "Mill-Llama-100K-Instruct-v2"
    hf_folders.write_llama(folder)
    card = "---\nlicense: mit\nlanguage:\n- no\ntags:\n- text\nbase_model: org/Mill-1B\n---\n# Mill"
    (folder / "README.md").write_text(card)
    sampling = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    assert main(["convert", str(folder), "out.gguf", "--type", "F16"]) == 0
    fields = gguf.GGUFReader("out.gguf").fields
    general = {key: field.contents() for key, field in fields.items() if key.startswith("general.")}
    assert general == {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "Mill Llama 100K Instruct v2",
        "general.version": "v2",
        "general.finetune": "Instruct",
        "general.basename": "Mill-Llama",
        "general.size_label": "100K",
        "general.license": "mit",
        "general.languages": ["no"],
        "general.tags": ["text"],
        "general.base_model.count": 1,
        "general.base_model.0.name": "Mill 1B",
        "general.base_model.0.organization": "Org",
        "general.base_model.0.repo_url": "https://huggingface.co/org/Mill-1B",
        "general.sampling.temp": pytest.approx(0.6),
        "general.sampling.top_k": 20,
        "general.sampling.top_p": pytest.approx(0.95),
        "general.file_type": gguf.LlamaFileType.MOSTLY_F16,
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
    }


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    assert main(["convert", *arguments]) == code
    captured = capsys.readouterr()
    told = [line for line in captured.err.splitlines() if "compiling" not in line]
    assert captured.out == "" and len(told) == 1, captured.err
    return told[0]


def test_what_cannot_be_converted_is_said_in_one_line(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = at_home / "model"
    assert "nothing to convert" in refusal(capsys, "out.gguf")
    assert "ending in .gguf" in refusal(capsys, "model", code=2)
    assert "found 3 names" in refusal(capsys, "a", "b", "c.gguf", code=2)
    assert "no such file or folder" in refusal(capsys, str(folder), "out.gguf")
    folder.mkdir()
    assert "no config.json" in refusal(capsys, str(folder), "out.gguf")
    hf_folders.write_llama(folder)
    assert "no such file or folder" in refusal(capsys, "in.gguf", "out.gguf")
    assert "unknown type 'q9'" in refusal(capsys, str(folder), "out.gguf", "--type", "q9")
    assert "no such folder to write" in refusal(capsys, str(folder), "none/out.gguf")
    tensors = hf_folders.llama_tensors()
    tensors["model.layers.0.mlp.router.weight"] = tensors["model.norm.weight"]
    hf_folders.write_llama(folder, tensors=tensors)
    assert "router.weight is unknown to architecture llama" in refusal(
        capsys, str(folder), "out.gguf"
    )
    tensors = hf_folders.llama_tensors()
    del tensors["lm_head.weight"]
    hf_folders.write_llama(folder, tensors=tensors)
    assert "no lm_head.weight" in refusal(capsys, str(folder), "out.gguf")
    tensors["lm_head.weight"] = np.full((296, 64), np.inf, np.float32)
    hf_folders.write_llama(folder, tensors=tensors)
    assert "tensor output.weight" in refusal(capsys, str(folder), "out.gguf")
    hf_folders.write_llama(folder, {"vocab_size": 299}, tensors=hf_folders.llama_tensors())
    assert "296 rows for 299 tokens" in refusal(capsys, str(folder), "out.gguf")
    assert list(Path().iterdir()) == []


def test_one_name_is_the_file_to_write(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is converted is said before it is, and a model of that name stays as it is."""
    hf_folders.write_llama(at_home / "model")
    assert main(["convert", str(at_home / "model"), "mine.gguf"]) == 0
    before = Path("mine.gguf").read_bytes()
    capsys.readouterr()
    for pulled in (False, True):
        told = refusal(capsys, "mine.gguf", "--type", "f16")
        assert "mine.gguf is a model already; to run it: kvarn run mine.gguf; to change" in told
        assert "over it: kvarn convert SRC mine.gguf" in told
        assert Path("mine.gguf").read_bytes() == before
        if not pulled:
            remember_pull("org/tiny", at_home / "model")
    Path("part.gguf").write_text("no model")
    assert main(["convert", "part.gguf"]) == 0
    told = capsys.readouterr().err
    assert f"converting org/tiny, the last pull ({at_home / 'model'}), to part.gguf\n" in told
    assert main(["convert", str(at_home / "model"), "mine.gguf", "--type", "f16"]) == 0
    assert Path("mine.gguf").read_bytes() != before


def test_a_gguf_file_gets_other_types(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hf_folders.write_llama(at_home / "model")
    assert main(["convert", str(at_home / "model"), "f16.gguf", "--type", "f16"]) == 0
    assert main(["convert", str(at_home / "model"), "direct.gguf", "--type", "q4_0"]) == 0
    assert main(["convert", "f16.gguf", "q4_0.gguf", "--type", "q4_0"]) == 0
    capsys.readouterr()
    types, again = (
        {t.name: t.tensor_type for t in gguf.GGUFReader(name).tensors}
        for name in ("direct.gguf", "q4_0.gguf")
    )
    assert types == again
    assert types["blk.0.attn_q.weight"] == gguf.GGMLQuantizationType.Q4_0
    assert "--pre has no effect" in refusal(capsys, "f16.gguf", "x.gguf", "--pre", "qwen2")
    embed = ("f16.gguf", "x.gguf", "--embed-hash", "--type", "q8_0")
    assert "two steps" in refusal(capsys, *embed, code=2)
    assert "has no effect without --embed-hash" in refusal(
        capsys, "f16.gguf", "x.gguf", "--hash", "h.gguf", code=2
    )
    assert "f16.hash.gguf" in refusal(capsys, "f16.gguf", "x.gguf", "--embed-hash")
    assert "convert the model first" in refusal(
        capsys, str(at_home / "model"), "x.gguf", "--embed-hash"
    )


def test_weights_shared_with_the_embedding_are_not_written_twice(at_home: Path) -> None:
    # transformers ties them whatever a stale lm_head.weight says; llama.cpp's converter keeps it.
    hf_folders.write_llama(at_home / "model", {"tie_word_embeddings": True})
    assert main(["convert", str(at_home / "model"), "out.gguf", "--type", "f32"]) == 0
    assert "output.weight" not in {t.name for t in gguf.GGUFReader("out.gguf").tensors}


def test_windows_that_files_do_not_have_are_told(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    hf_folders.write_llama(at_home / "model", config | {"sliding_window": 64})
    assert main(["convert", str(at_home / "model"), "out.gguf"]) == 0
    assert "the sliding window of 64 tokens is left out" in capsys.readouterr().err


def test_what_was_pulled_and_made_last_is_remembered(at_home: Path) -> None:
    assert last_pull() is None and last_model() is None
    remember_pull("org/one", Path("one"))
    remember_model(Path("m.gguf"), "converted")
    assert last_pull() == ("org/one", at_home / "work" / "one")
    assert last_model() == at_home / "work" / "m.gguf"
    (at_home / "home" / "last.json").write_text("[not what kvarn wrote")
    assert last_pull() is None and last_model() is None


def test_a_model_that_is_gone_gives_way_to_the_default(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remember_model(Path("gone.gguf"), "converted")
    assert main(["tokenize", "--count", "x"]) == 0
    assert "gone.gguf, the last converted or pulled one, is gone" in capsys.readouterr().err


def test_two_processes_do_not_write_one_file(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvarn.system.files import new_file

    hf_folders.write_llama(at_home / "model")
    with new_file(Path("out.gguf")) as part:
        assert "another process is writing out.gguf" in refusal(
            capsys, str(at_home / "model"), "out.gguf"
        )
        part.write_bytes(b"whole")
    assert Path("out.gguf").read_bytes() == b"whole"
