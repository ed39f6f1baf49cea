"""Conversions that are killed, or larger than memory."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from kvarn.cli import main

from ..programs import printed
from . import hf_folders


def killed_at(seconds: float, folder: Path, out: Path) -> bool:
    """Whether a conversion was killed, so long after its first byte, before it ended by itself."""
    started = time.time_ns()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvarn", "convert", str(folder), str(out), "--type", "f32"],
        stdout=subprocess.DEVNULL,
    )

    def is_writing() -> bool:
        with suppress(FileNotFoundError):  # it took its name
            parts = out.parent.glob(f".{out.name}.*.part")
            return any(part.stat().st_mtime_ns > started for part in parts)
        return True

    while process.poll() is None and not is_writing():
        time.sleep(0.002)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def check_kills(at_home: Path, n: int) -> None:
    config = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    hf_folders.write_llama(at_home / "model", {**hf_folders.LLAMA, **config})
    out = Path("out.gguf").absolute()
    assert main(["convert", str(at_home / "model"), str(out), "--type", "f32"]) == 0
    whole = out.read_bytes()
    out.unlink()
    moments = random.Random(7)
    kills = sum(killed_at(moments.uniform(0, 0.2), at_home / "model", out) for _ in range(n))
    assert kills >= n // 2
    assert not out.exists() or out.read_bytes() == whole
    # The next one starts clean, over what was left.
    assert main(["convert", str(at_home / "model"), str(out), "--type", "f32"]) == 0
    assert out.read_bytes() == whole
    assert [path.name for path in out.parent.iterdir()] == ["out.gguf"]


def test_a_killed_conversion_leaves_no_half_file(at_home: Path) -> None:
    check_kills(at_home, 2)


@pytest.mark.slow
def test_many_killed_conversions_leave_no_half_file(at_home: Path) -> None:
    check_kills(at_home, 60)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(at_home: Path) -> None:
    config = {
        **hf_folders.LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 8,
        "tie_word_embeddings": True,
    }
    write_sparse(at_home / "model", config)
    size = (at_home / "model" / "model.safetensors").stat().st_size
    assert size > 4 << 30
    code = (
        "from kvarn.cli import main; from kvarn.runtime.memory import peak_resident_bytes; "
        f"code = main(['convert', {str(at_home / 'model')!r}, 'out.gguf', '--type', 'q8_0']); "
        "print(code, peak_resident_bytes() >> 10)"
    )
    code, kilobytes = map(int, printed(code).splitlines()[-1].split())
    assert code == 0
    print(f"{size >> 20} MiB of weights, {kilobytes >> 10} MiB of memory at most")
    assert kilobytes < 1 << 20  # 1 GiB


def write_sparse(folder: Path, config: dict[str, object]) -> None:
    """A model of bfloat16 zeros that takes no room on the disk."""
    small = {**config, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
             "num_key_value_heads": 4}  # fmt: skip
    hf_folders.write_llama(folder, config, hf_folders.llama_tensors(small))
    sizes = {64: config["hidden_size"], 96: config["intermediate_size"], 296: 296}
    header, at = {}, 0
    for name, values in hf_folders.llama_tensors(small).items():
        shape = [sizes[n] for n in values.shape]
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + at)
