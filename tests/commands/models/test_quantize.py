"""`kvarn quantize` and `kvarn imatrix`: what they say, and how they end."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from kvarn.cli import main
from kvarn.commands.options.values import WEIGHT_TYPES
from kvarn.convert.quantize.imatrix import read_imatrix
from kvarn.convert.quantize.mixes import MIXES
from lab.peers.model import Shape, write_model

TEXT = "The mill stood by the river, and the wheel turned all day. " * 30
SHAPE = Shape(n_layers=2, n_embd=256, n_heads=4, n_kv_heads=2, head_dim=64, n_ff=256, n_vocab=512)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "source.gguf"
    write_model(path, "f16", SHAPE)
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_a_model_is_quantised_with_an_importance_matrix(
    source: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imatrix, target = tmp_path / "im.gguf", tmp_path / "out.gguf"
    wanted = ["imatrix", "-m", str(source), "-f", str(text), "-o", str(imatrix), "-c", "64"]
    assert main([*wanted, "--chunks", "3"]) == 0
    assert "3 pieces of 64 tokens" in capsys.readouterr().err
    assert main(["quantize", str(source), str(target), "--type", "Q4_K_M"]) == 0
    plain = capsys.readouterr()
    assert plain.out == "" and "bits per weight" in plain.err and "Q6_K" in plain.err
    wanted = ["quantize", str(source), str(target), "--type", "q4_k_m", "--imatrix", str(imatrix)]
    assert main([*wanted, "-t", "1"]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1  # none about tensors without importances
    fields = gguf.GGUFReader(target).fields
    assert fields["quantize.imatrix.file"].contents() == str(imatrix)[:127]
    assert fields["quantize.imatrix.entries_count"].contents() == 14
    assert fields["quantize.imatrix.chunks_count"].contents() == 3
    assert fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_M


def test_experts_are_quantised_with_importances_of_their_own(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 256 experts a short text leaves some without a token, which is told."""
    source, imatrix, target = (tmp_path / f"{name}.gguf" for name in ("source", "im", "target"))
    write_model(source, "f16", replace(SHAPE, n_layers=1, n_ff=32, n_experts=256, n_used=2))
    assert (
        main(["imatrix", "-m", str(source), "-f", str(text), "-o", str(imatrix), "-c", "64"]) == 0
    )
    told = capsys.readouterr().err
    counts = {t.name: t.data for t in gguf.GGUFReader(imatrix).tensors if "_exps" in t.name}
    unseen = sum(int((x == 0).sum()) for name, x in counts.items() if name.endswith(".counts"))
    assert len(counts) == 6 and f"{unseen:,} of 768 matrices of experts had no token" in told
    wanted = ["quantize", str(source), str(target), "--type", "q4_0", "--imatrix", str(imatrix)]
    assert main(wanted) == 0
    assert "no entry" not in capsys.readouterr().err
    assert gguf.GGUFReader(target).fields["quantize.imatrix.entries_count"].contents() == 8


def test_other_types_than_asked_for_are_told(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny_path), str(tmp_path / "out.gguf"), "--type", "q6_k"]) == 0
    assert (
        "15 matrices have other types: the blocks of q6_k do not divide" in capsys.readouterr().err
    )


def test_encoders_of_other_weights_are_left_out_and_told(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedded, target = tmp_path / "embedded.gguf", tmp_path / "out.gguf"
    write_model(embedded, "f16", SHAPE, lambda w: w.add_uint32("kvarn.hash.version", 1))
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))  # convert remembers what it made
    for words in (
        ["quantize", str(embedded), str(target)],
        ["convert", str(embedded), str(target)],
    ):
        assert main([*words, "--type", "q8_0"]) == 0
        assert "the hash encoders in embedded.gguf are left out" in capsys.readouterr().err
        assert not any(key.startswith("kvarn.hash") for key in gguf.GGUFReader(target).fields)
    assert main(["quantize", str(source), str(target), "--type", "q8_0"]) == 0
    told = capsys.readouterr().err
    assert "left out" not in told
    main(["inspect", str(target), "--json"])
    bits = json.loads(capsys.readouterr().out)["bits_per_weight"]
    assert f"{bits:.2f} bits per weight" in told


def test_what_cannot_be_quantised_is_one_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.gguf"
    for arguments, message in (
        ([source, target, "--type", "q9"], "unknown type 'q9'"),
        ([source, source, "--type", "q8_0"], "is the file to read from"),
        ([tmp_path / "none.gguf", target, "--type", "q8_0"], "none.gguf"),
        ([source, target, "--type", "q8_0", "--imatrix", source], "another kind"),
        ([source, tmp_path, "--type", "q8_0"], "is a folder"),
    ):
        assert main(["quantize", *map(str, arguments)]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and message in lines[0], lines
    assert not target.exists()


def test_an_interrupted_imatrix_is_saved(source: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "long.txt", tmp_path / "im.gguf"
    path.write_text(TEXT * 200)
    arguments = ["imatrix", "-m", source, "-f", path, "-o", target, "-c", "32"]
    code = (
        "import sys; from kvarn.convert.quantize import observe; read = observe.Observer.read\n"
        "def told(*arguments):\n"
        "    for step in read(*arguments):\n"
        "        print(step, flush=True)\n"
        "        yield step\n"
        "observe.Observer.read = told\n"
        "from kvarn.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"stopped, saved after" in err and b"Traceback" not in err
    found = read_imatrix(target)
    assert 1 <= found.n_chunks < 1000
    assert len(found.means) == 7 * SHAPE.n_layers


def test_the_help_names_all_types() -> None:
    assert WEIGHT_TYPES.split(", ") == list(MIXES)
