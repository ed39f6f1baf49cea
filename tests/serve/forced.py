"""A real engine whose answers are those that a test says, by a constraint."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvarn.cli import main
from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.client import EngineClient
from kvarn.runtime.serving.prompt import Chat, Prompt
from kvarn.runtime.serving.protocol import Done, Pieces, Progress, Start

from ..convert import hf_folders

_LONG = {"max_position_embeddings": 1 << 17}
Answer = Callable[[Chat], str]


def write_model(folder: Path, template: str) -> Path:
    """A random llama with this chat template, whose vocabulary spells all texts byte by byte."""
    saved, path = folder / "saved", folder / "model.gguf"
    hf_folders.write_llama(saved, _LONG)
    (saved / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:  # or it is the last model of other tests, too
        patched.setenv("KVARN_HOME", str(folder / "converting"))
        assert main(["convert", str(saved), str(path)]) == 0
    return path


@dataclass(frozen=True)
class Told:
    """An answer as it was generated, and what it cost."""

    text: str
    done: Done


class ForcedEngine(EngineClient):
    """Gives the answer of `answer` to each conversation; `told`: those that it gave."""

    def __init__(self, model: Path, cache: Path, answer: Answer) -> None:
        start = Start(
            model=str(model),
            n_ctx=_LONG["max_position_embeddings"],
            parallel=4,
            threads=1,
            cancel_path="",
            cache_path=str(cache),
            cache_bytes=1 << 30,
        )
        self.lines: list[str] = []
        super().__init__(start, self.lines.append)
        self._answer = answer
        self.told: list[Told] = []

    async def generate(
        self, prompt: Prompt, **fields: Any
    ) -> AsyncIterator[Progress | Pieces | Done]:
        assert isinstance(prompt, Chat)
        forced = Form("regex", _literal(self._answer(prompt)))
        text = ""
        async for sent in super().generate(
            prompt, **{**fields, "constraint": forced, "max_tokens": None}
        ):
            text += sent.text if isinstance(sent, Pieces) else ""
            if isinstance(sent, Done):
                self.told.append(Told(text, sent))
            yield sent


def _literal(text: str) -> str:
    """A regular expression of one text."""
    return "".join(re.escape(c) if c in r"\.^$*+?{}[]|()" else c for c in text)
