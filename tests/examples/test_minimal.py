"""The first file to read: a forward pass and greedy text in plain NumPy."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvarn
from kvarn.cli import main
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.loading.default_model import default_model_path

from ..models import tiny_cases, tiny_models

if TYPE_CHECKING:
    from kvarn.runtime.model import Model

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "examples" / "minimal.py"
MINIMAL = runpy.run_path(str(PATH))
TEXT = (ROOT / "tests" / "runtime" / "golden" / "two_cities.txt").read_text(encoding="utf-8")
PROMPTS = ("Who", "The child looked at him and", TEXT[:300], TEXT[:2500])
"""From one token to several windows."""


def greedy(path: Path, prompt: list[int], n: int) -> list[int]:
    with open_gguf(path) as file:
        return list(MINIMAL["generate"](MINIMAL["Model"](file), prompt, n))


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's weights as F32. With Q8_0, both sides round activations to 8 bits: a last
    bit that differs moves a logit by up to 0.1, and 24 tokens of this model pass closer choices."""
    path = tmp_path_factory.mktemp("floats") / "floats.gguf"
    words = ["quantize", "--allow-requantize", str(default_model_path()), str(path)]
    assert main([*words, "--type", "f32"]) == 0
    return path


@pytest.fixture(scope="module")
def model(floats: Path) -> "Model":
    return kvarn.load(floats)


@pytest.mark.parametrize("text", PROMPTS)
def test_it_chooses_the_tokens_that_kvarn_chooses(text: str, floats: Path, model: "Model") -> None:
    prompt = model.tokenizer.encode(text, bos=True)
    context = model.context(1024)
    sampler = kvarn.Sampler(temp=0)
    expected = context.generate_ids(prompt, max_tokens=24, sampler=sampler, stop_at_eos=False)
    assert greedy(floats, prompt, 24) == list(expected)


def test_logits_of_the_quantised_model_are_kvarns() -> None:
    """To twice the 0.1 of the fixture above; the logits span 15 to 18."""
    model = kvarn.load()
    prompt = model.tokenizer.encode(TEXT[:2500], bos=True)
    with open_gguf(default_model_path()) as file:
        logits = MINIMAL["Model"](file).forward(prompt)
    np.testing.assert_allclose(logits, model.context(1024).prefill(prompt), rtol=0, atol=0.2)


def test_it_chooses_the_tokens_that_llama_cpp_chooses(tmp_path: Path) -> None:
    """Of a model whose query heads share KV heads."""
    (case,) = (case for case in tiny_cases.CASES if case.name == "cohere2")
    assert case.n_heads == 2 * case.n_kv_heads
    stored: Any = np.load(ROOT / "tests" / "models" / "golden" / "cohere2.npz")
    seed = int(stored["seed"])
    tiny_models.write(tmp_path / "tiny.gguf", case, seed)
    expected = stored["ids"].tolist()
    prompt = tiny_models.prompt(case, seed)
    assert greedy(tmp_path / "tiny.gguf", prompt, len(expected)) == expected


def test_it_runs_as_its_first_lines_say(tmp_path: Path) -> None:
    prompt = "The mill stood by the river"
    assert f'python examples/minimal.py "{prompt}"' in PATH.read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(PATH), prompt],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, cwd=tmp_path,
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 20
    assert not done.stderr


def test_it_stays_short() -> None:
    assert len(PATH.read_text(encoding="utf-8").splitlines()) <= 150
