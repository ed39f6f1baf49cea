"""Someone who types what documents say."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kvarn.runtime.gguf import open_gguf

from ..convert import hub_server
from ..convert.hf_folders import write_safetensors
from ..models.adapters import random_pairs, write_adapter
from ..runtime.documents import made
from .document_commands import ROOT, Block

NOVEL = ROOT / "tests" / "runtime" / "golden" / "two_cities.txt"


class Reader:
    """Someone who types blocks, each in a folder with the files that it speaks of."""

    def __init__(self, folder: Path, model: Path, hub: hub_server.Hub) -> None:
        self._folder, self._model, self._hub = folder, model, hub
        self.book = NOVEL.read_text(encoding="utf-8") * 4

    def type(self, written: list[Block], timeout: float, *options: str) -> list[dict[str, Any]]:
        """What came of each step; options: see `document_runner`."""
        jobs = [
            {
                "folder": str(self._provided(number, steps)),
                "home": str(self._folder / f"home-{number}"),
                "steps": [
                    {"kind": s.kind, "text": s.text, "words": s.words if s.kind == "shell" else []}
                    for s in steps
                ],
            }
            for number, steps in enumerate(written)
        ]
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HF_", "HUGGING"))
        }
        environment = inherited | {
            "HF_ENDPOINT": self._hub.url,
            "HF_HOME": str(self._folder / "hf"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("document_runner.py")), *options],
            input=json.dumps(jobs), env=environment, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _provided(self, number: int, steps: Block) -> Path:
        folder = self._folder / f"work-{number}"
        (folder / "TEXTS").mkdir(parents=True)
        for name in ("a.py", "book.txt", "notes.txt", "text.txt", "TEXTS/novel.txt"):
            (folder / name).write_text(self.book, encoding="utf-8")
        (folder / "names.txt").write_text("report.pdf\nnotes.txt\n")
        (folder / "report.pdf").write_bytes(made.pdf("The mill stood", "by the river."))
        makes_model = any(step.text == "kvarn convert model.gguf" for step in steps)
        for name in ("IN.gguf",) if makes_model else ("IN.gguf", "model.gguf"):
            shutil.copy(self._model, folder / name)
        if any("--lora" in step.text for step in steps):
            self._write_adapters(folder)
        if any("style-lora/" in step.text for step in steps):
            self._write_peft(folder / "style-lora")
        return folder

    def _write_adapters(self, folder: Path) -> None:
        with open_gguf(self._model) as file:
            name = "blk.0.attn_q.weight"
            pairs = random_pairs({name: file.tensors[name].shape}, 2)
            for adapter in ("style.gguf", "facts.gguf"):
                write_adapter(folder / adapter, file.architecture, pairs)

    def _write_peft(self, folder: Path) -> None:
        """An adapter as PEFT saves it, here and on the hub."""
        folder.mkdir()
        with open_gguf(self._model) as file:
            n_rows, n_columns = file.tensors["blk.0.attn_q.weight"].shape
        name = "base_model.model.model.layers.0.self_attn.q_proj"
        write_safetensors(
            folder / "adapter_model.safetensors",
            {
                f"{name}.lora_A.weight": np.ones((2, n_columns), np.float32),
                f"{name}.lora_B.weight": np.zeros((n_rows, 2), np.float32),
            },
        )
        settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        self._hub.add_folder("ORGANISATION/ADAPTER", folder)
