"""A server as `kvarn serve` starts it, over a model that always answers the same words."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvarn.cli import main

from ..convert import hf_folders
from ..convert.vocabularies import small_pieces

ANSWER = "the mill"
_LONG = {"max_position_embeddings": 1 << 17}
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def write_model(folder: Path) -> Path:
    """A llama that answers each prompt with ANSWER: its layers add nothing, so the last token's
    embedding alone decides. Element 0 of all embeddings is the same and votes for the first word;
    the first word's embedding outvotes it for the second, and the second's for the end."""
    tensors = hf_folders.llama_tensors({**hf_folders.LLAMA, **_LONG})
    ids = {text: i for i, (text, _, _) in enumerate(small_pieces(296))}
    first, second, end = ids["▁the"], ids["▁mill"], 2
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name][:] = 0
    embedding[:, 0] = 1
    embedding[first, 1:], embedding[second, 1:] = 0, 0
    embedding[first, 1] = embedding[second, 2] = 4
    embedding[:, 1:3] *= embedding[:, 1:3] == 4
    head[:] = 0
    head[first, 0], head[second, 1], head[end, 2] = 30, 60, 60
    saved = folder / "saved"
    hf_folders.write_llama(saved, _LONG, tensors)
    (saved / "chat_template.jinja").write_text(_TEMPLATE)
    path = folder / "model.gguf"
    with pytest.MonkeyPatch.context() as patched:  # or it is the last model of other tests, too
        patched.setenv("KVARN_HOME", str(folder / "converting"))
        assert main(["convert", str(saved), str(path)]) == 0
    return path


@dataclass
class Served:
    """A server, the folder that it was started in, and its log."""

    process: subprocess.Popen[bytes]
    folder: Path
    url: str = ""

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def statuses(self, path: str) -> list[str]:
        """Of the requests for a path, in order."""
        return re.findall(rf" POST {re.escape(path)} (\d+) ", self.log())

    def wait(self) -> None:
        """Until the model is loaded."""
        stop = time.monotonic() + 120
        while time.monotonic() < stop:
            assert self.process.poll() is None, self.log()
            line = re.search(r"listening on (http://\S+:\d+)", self.log())
            if line is not None:
                self.url = line[1]
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(self.log())


@contextmanager
def served(folder: Path, words: list[str]) -> Iterator[Served]:
    """`kvarn WORDS` on a free port, in `folder`; ended by SIGTERM, with exit code 0."""
    command = [sys.executable, "-m", "kvarn", *words, "--port", "0"]
    environment = os.environ | {"KVARN_HOME": str(folder / "home")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stderr=log)
    try:
        server = Served(process, folder)
        server.wait()
        yield server
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, server.log()
    finally:
        process.kill()
        process.wait()
