"""Two turns of programs that call tools, as they sent them (trimmed): the second reads only what is
new. The oracle: the tokens of the first prompt and its answer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvarn.runtime.serving.prompt import Chat
from kvarn.serve.settings import Limits

from .forced import ForcedEngine, write_model
from .live import serving

FOLDER = Path(__file__).parent / "agents"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.json"))
LAST = "<think>\nNow I know.\n</think>\n\nThe file prints 42."
CHANGED = "date: today"
# Gemma's rules: no system message, no tools, the user and the model in turn.
STRICT = (
    "{%- for m in messages -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('roles must alternate') }}{%- endif -%}"
    "[{{ m.role }}]{{ m.content }}{%- endfor -%}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = (FOLDER / "template.jinja").read_text(encoding="utf-8")
    return write_model(tmp_path_factory.mktemp("model"), template)


def sent(program: str) -> dict[str, Any]:
    """What a program sent: path, headers, the answer to its first turn, two bodies."""
    found: dict[str, Any] = json.loads((FOLDER / f"{program}.json").read_text(encoding="utf-8"))
    return found


def replay(model: Path, folder: Path, recorded: dict[str, Any]) -> ForcedEngine:
    """An engine that has answered both turns."""

    def answer(chat: Chat) -> str:
        has_result = any(one["role"] == "tool" for one in chat.messages)
        return LAST if has_result else str(recorded["answer"])

    engine = ForcedEngine(model, folder / "cache", answer)
    with serving(engine, Limits(stop_seconds=1)) as at, httpx.Client(timeout=120) as http:
        end = time.monotonic() + 120
        while http.get(f"{at}/health").status_code != 200:
            assert time.monotonic() < end, engine.lines
            time.sleep(0.02)
        for body in recorded["turns"]:
            answered = http.post(at + recorded["path"], json=body, headers=recorded["headers"])
            assert answered.status_code == 200, answered.text
    return engine


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_strict_template_takes_both_turns(program: str, tmp_path: Path) -> None:
    """It refuses each of these conversations as it was sent."""
    model = write_model(tmp_path, STRICT)
    assert len(replay(model, tmp_path, sent(program)).told) == 2


def test_all_programs_are_here() -> None:
    assert PROGRAMS == ["claude", "codex", "llm", "opencode", "qwen"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_second_turn_reads_what_is_new(program: str, model: Path, tmp_path: Path) -> None:
    recorded = sent(program)
    first, second = replay(model, tmp_path, recorded).told
    assert (first.text, second.text) == (recorded["answer"], LAST)
    n_first = first.done.n_prompt + first.done.n_generated
    # The last token of an answer was sampled, and is read with what follows it.
    assert second.done.n_prompt > second.done.n_cached >= n_first - 1


def test_what_changes_at_the_start_is_read_again(model: Path, tmp_path: Path) -> None:
    """So that the test above can fail."""
    recorded = sent("llm")
    for i, body in enumerate(recorded["turns"]):
        body["messages"].insert(0, {"role": "system", "content": f"{CHANGED} {i}"})
    first, second = replay(model, tmp_path, recorded).told
    assert second.done.n_cached < first.done.n_prompt
