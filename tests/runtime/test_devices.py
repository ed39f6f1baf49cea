"""`--device cuda` on machines where something is missing: one line, before anything is loaded.

No test here needs a GPU or torch, but those of room in its memory, which need torch installed.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.cli import main
from kvarn.cuda_ops import machine
from kvarn.cuda_ops.machine import Card, Machine, refusal
from kvarn.runtime import model
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.loading import devices

from ..models import tiny_cases, tiny_models
from ..programs import printed

GIB = 1 << 30
CARD = Card("NVIDIA L4", (8, 9), 24 * GIB, 23 * GIB)
GOOD = Machine(
    torch="2.13.0+cu130",
    triton="3.7.0",
    broken="",
    cuda="13.0",
    driver_cuda="13.1",
    driver="590.44.01",
    cards=(CARD,),
    compiler="/usr/bin/gcc",
    headers=True,
)
NEEDS = "--device cuda needs PyTorch and Triton: pip install 'torch>=2.11' 'triton>=3.6'"
LACKING: list[tuple[dict[str, Any], str]] = [
    ({"torch": None, "cuda": None, "cards": ()}, NEEDS),
    ({"triton": None}, NEEDS),
    (
        {"broken": "ImportError: libcudnn.so.9"},
        "--device cuda: PyTorch 2.13.0+cu130 cannot be imported (ImportError: libcudnn.so.9): "
        "install it anew, pip install 'torch>=2.11' 'triton>=3.6'",
    ),
    (
        {"torch": "2.13.0+cpu", "cuda": None, "cards": ()},
        "--device cuda: PyTorch 2.13.0+cpu was built without CUDA: remove it (pip uninstall "
        "torch), then pip install 'torch>=2.11' 'triton>=3.6'",
    ),
    (
        {"driver_cuda": None, "driver": None, "cards": ()},
        "--device cuda: no GPU: there is no NVIDIA driver (libcuda) on this machine: install it, "
        "or use --device cpu",
    ),
    (
        {"driver_cuda": "12.4", "cards": ()},
        "--device cuda: the NVIDIA driver runs CUDA 12.4 and PyTorch 2.13.0+cu130 was built for "
        "CUDA 13.0: update the driver, or install a PyTorch built for an older CUDA",
    ),
    ({"cards": ()}, "--device cuda: the NVIDIA driver finds no GPU: use --device cpu"),
    (
        {"cards": (replace(CARD, name="Tesla P40", capability=(6, 1)),)},
        "--device cuda: Tesla P40 has compute capability 6.1, expected 7.5 (Turing, 2018) or "
        "newer: use --device cpu",
    ),
    (
        {"compiler": None},
        "--device cuda: Triton needs a C compiler once and found none: install one (apt install "
        "gcc) or set CC to it",
    ),
    (
        {"headers": False},
        "--device cuda: Triton needs Python's headers once and they are not installed (apt "
        "install python3-dev)",
    ),
]


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_what_suffices_is_not_refused() -> None:
    assert refusal(GOOD) is None
    assert refusal(replace(GOOD, driver_cuda="13.0", cuda="13.2")) is None  # minor versions
    assert refusal(replace(GOOD, cards=(replace(CARD, capability=(7, 5)),))) is None


@pytest.mark.parametrize(("lacking", "line"), LACKING)
def test_what_lacks_is_one_line_and_nothing_is_loaded(
    lacking: dict[str, Any],
    line: str,
    tiny_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(machine, "look", lambda: replace(GOOD, **lacking))
    monkeypatch.setattr(model.Weights, "load", load)
    assert main(["run", str(tiny_path), "-p", "x", "-n", "1", "--device", "cuda"]) == 1
    assert capsys.readouterr() == ("", f"kvarn: {line}\n")
    with pytest.raises(kvarn.KvarnError) as raised:
        kvarn.load(tiny_path, device="cuda")
    assert str(raised.value) == line


def test_hidden_cards_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert "no GPU (CUDA_VISIBLE_DEVICES='7')" in (refusal(replace(GOOD, cards=())) or "")


@pytest.mark.parametrize(
    "command", ["chat", "bench -r 1", "perplexity -f t.txt", "eval", "pack build -f t.txt -o t"]
)
def test_every_command_with_the_option_refuses(
    command: str,
    tiny_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("the mill stood by the river")
    monkeypatch.setattr(machine, "look", lambda: replace(GOOD, compiler=None))
    assert main([*command.split(), "-m", str(tiny_path), "--device", "cuda"]) == 1
    assert "Triton needs a C compiler" in capsys.readouterr().err


def test_this_machine_is_looked_at() -> None:
    found = machine.look()
    assert (found.torch is None) == (find_spec("torch") is None)
    assert (found.triton is None) == (find_spec("triton") is None)
    assert found.broken == ""
    if not found.cards:
        assert refusal(found) is not None


def test_where_k_and_v_are_needs_a_gpu(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tiny_path), "-p", "x", "-n", "1", "--kv-on", "gpu"]) == 2
    line = "--kv-on gpu has no effect without --device cuda: give both"
    assert capsys.readouterr() == ("", f"kvarn: {line}\n")
    with pytest.raises(kvarn.KvarnError, match="K and V cannot be on 'disk': expected auto, gpu"):
        kvarn.load(tiny_path, kv_on="disk")
    with pytest.raises(kvarn.KvarnError, match="K and V cannot be on 'disk': expected auto, gpu"):
        kvarn.load(tiny_path).context(64, kv_on="disk")
    with pytest.raises(kvarn.KvarnError, match="kv_on gpu: the model is not on a GPU"):
        kvarn.load(tiny_path, kv_on="gpu").context(64)
    assert kvarn.load(tiny_path).context(64).where == ""


@pytest.mark.parametrize("command", ["run", "chat", "bench", "perplexity", "eval", "pack build"])
def test_every_command_with_a_device_says_where_k_and_v_may_be(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help-all"])
    assert "--kv-on {auto,gpu,host}" in capsys.readouterr().out


def test_unknown_devices_are_refused(tiny_path: Path) -> None:
    with pytest.raises(kvarn.KvarnError, match="no device 'tpu': expected cpu or cuda"):
        kvarn.load(tiny_path, device="tpu")


def needs(path: Path) -> tuple[int, str]:
    """Bytes of free memory from which on a model fits, and what is said of one byte less."""
    file = open_gguf(path)
    low, high = 0, 64 * GIB
    said = ""
    while high - low > 1:
        middle = (low + high) // 2
        try:
            devices.check_room(file, replace(CARD, free_bytes=middle), 512)
            high = middle
        except kvarn.KvarnError as error:
            low, said = middle, str(error)
    return high, said


def test_models_that_do_not_fit_are_refused_with_what_would(tiny_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    least, said = needs(tiny_path)
    weights = open_gguf(tiny_path).n_bytes
    assert least > weights
    assert said.startswith("loading tiny.gguf with --device cuda: weights and buffers need ")
    assert said.endswith(
        "are free on NVIDIA L4: use the model as Q8_0, which fits, or --device cpu"
    )
    with pytest.raises(kvarn.KvarnError, match="use a smaller model, or --device cpu"):
        devices.check_room(open_gguf(tiny_path), replace(CARD, free_bytes=1 << 20), 512)


@pytest.mark.parametrize(
    ("name", "unserved"),
    [("gemma4", "attention whose layers differ"), ("deepseek2-dense", "latent attention has")],
)
def test_attention_without_kernels_for_gpus_is_refused(
    name: str, unserved: str, tmp_path: Path
) -> None:
    (case,) = (case for case in tiny_cases.CASES if case.name == name)
    tiny_models.write(path := tmp_path / "model.gguf", case, 1)
    with pytest.raises(kvarn.KvarnError, match=f"device cuda: {unserved}.*: use --device cpu"):
        devices.check_room(open_gguf(path), CARD, 512)


def test_without_the_option_torch_and_triton_are_not_imported(tiny_path: Path) -> None:
    program = (
        "import sys; from kvarn.cli import main; code = main(sys.argv[1:]); "
        "print(code, sorted({'torch', 'triton'} & sys.modules.keys()))"
    )
    done = printed(program, "run", tiny_path, "-p", "x", "-n", "2")
    assert done.splitlines()[-1].endswith("0 []")


def test_doctor_tells_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "look", lambda: GOOD)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA L4: 23 GiB free of 24 GiB; compute capability 8.9" in text
    assert (
        "driver 590.44.01 for CUDA 13.1, PyTorch 2.13.0+cu130 for CUDA 13.0, Triton 3.7.0, "
        "C compiler: /usr/bin/gcc"
    ) in text
    assert "--device cuda can be used" in text
    lacking = replace(
        GOOD, torch=None, triton=None, cuda=None, driver_cuda=None, cards=(), compiler=None
    )
    monkeypatch.setattr(machine, "look", lambda: lacking)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "no NVIDIA driver, no PyTorch, no Triton, C compiler: none" in text and NEEDS in text
    assert main(["doctor", "--compile"]) == 1
    assert NEEDS in capsys.readouterr().err
