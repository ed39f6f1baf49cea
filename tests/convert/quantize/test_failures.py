"""GGUF to GGUF: the memory that it takes, and what a failure leaves behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvarn.convert.quantize.files import quantise_file
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.gguf import GGUFError, open_gguf

from ...programs import printed
from ...runtime.gguf import gguf_bytes
from . import models
from .models import Sizes


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a matrix of 512 MiB, of which the disk holds nothing: zeros."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    keys = [
        gguf_bytes.pair("general.architecture", gguf_bytes.STRING, "llama"),
        gguf_bytes.pair("llama.block_count", gguf_bytes.U32, 1),
    ]
    rows, cols = 1 << 16, 1 << 12
    info = gguf_bytes.info("blk.0.ffn_up.weight", (cols, rows), 1)
    path.write_bytes(gguf_bytes.build(keys, [info]))
    os.truncate(path, path.stat().st_size + 2 * rows * cols)
    return path


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "kvarn", "quantize", *map(str, arguments)]


def test_memory_does_not_grow_with_the_model(large: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from kvarn.cli import main; from kvarn.runtime.memory import"
        " peak_resident_bytes; main(sys.argv[1:]); print(peak_resident_bytes())"
    )
    small = tmp_path / "small.gguf"
    models.write(small, Sizes(n_layers=1))
    peaks = []
    for source in (small, large):
        arguments = ["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q8_0"]
        peaks.append(int(printed(code, *arguments, timeout=60)))
    assert peaks[1] - peaks[0] < 48 << 20


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_process_leaves_no_half_file(
    large: Path, how: signal.Signals, tmp_path: Path
) -> None:
    target = tmp_path / "out.gguf"

    def part() -> list[Path]:
        return [path for path in tmp_path.glob(".out.gguf.*.part") if path.stat().st_size]

    arguments = command(large, target, "--type", "q8_0")
    with subprocess.Popen(arguments, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not part() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    assert not target.exists()
    assert bool(part()) == (how == signal.SIGKILL)
    if how == signal.SIGINT:
        assert process.returncode == 130 and b"Traceback" not in err
    quantise_file(large, target, mix_of("q8_0"))
    assert sorted(tmp_path.iterdir()) == [target]
    with open_gguf(target) as file:
        assert not file.tensors["blk.0.ffn_up.weight"].data.any()


def test_a_full_disk_is_one_line(large: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))

    arguments = command(large, tmp_path / "out.gguf", "--type", "q8_0")
    done = subprocess.run(
        arguments, capture_output=True, text=True, preexec_fn=limit, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"kvarn: {tmp_path / 'out.gguf'}: File too large"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_shrinks_is_told(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    models.write(source, Sizes(n_layers=2))
    with open_gguf(source) as file:
        last = max(file.tensors.values(), key=lambda tensor: tensor.offset)

    def shrink(done: int, total: int) -> None:
        os.truncate(source, last.offset)

    with pytest.raises(GGUFError, match="has become shorter"):
        quantise_file(source, tmp_path / "out.gguf", mix_of("q8_0"), progress=shrink)
    assert list(tmp_path.iterdir()) == [source]
