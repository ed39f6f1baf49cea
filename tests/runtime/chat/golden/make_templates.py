"""Writes templates.json: what transformers makes of every chat template and conversation.

Run with transformers (5.23) and jinja2 installed: `python make_templates.py FOLDER`, FOLDER being
the `templates` folder of the test data.
"""

import hashlib
import itertools
import json
import sys
from datetime import datetime
from pathlib import Path

from transformers.utils import chat_template_utils

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather of a city: <now> & "here", in °C',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of the city"},
                    "days": {"type": "integer", "default": 2147483647},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                },
                "required": ["city"],
            },
        },
    }
]
USER = {"role": "user", "content": 'Why is the sky blue? <b>&"quotes"\'</b> é 日本 🙂'}
SYSTEM = {"role": "system", "content": "You are helpful.\nBe brief."}
ANSWER = {"role": "assistant", "content": "  Because of scattering.  "}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Åre", "days": 2}},
}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "And at night?"}],
    "long": [SYSTEM, *([USER, ANSWER] * 3), USER],
    "reasoning": [
        USER,
        {**ANSWER, "reasoning_content": "Rayleigh…"},
        {"role": "user", "content": "<think>no</think> Go on."},
    ],
    "calls": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "-3"},
        {"role": "assistant", "content": "It is cold."},
        {"role": "user", "content": "Thanks"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Part one"}]}],
    "two users": [USER, USER],
    "last answer": [USER, ANSWER],
}
EXTRAS = [{}, {"enable_thinking": False}]
BOS, EOS = "<bos>", "<eos>"


class Clock(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5)


def render(source: str, conversation: str, tools: bool, generation: bool, extra: dict) -> str:
    """One case: the first digits of the text's SHA-256, or `!` and transformers' error."""
    # As in apply_chat_template, which drops keys without a value before it renders.
    chat = [{k: v for k, v in m.items() if v is not None} for m in CONVERSATIONS[conversation]]
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [chat],
            tools=TOOLS if tools else None,
            chat_template=source,
            add_generation_prompt=generation,
            bos_token=BOS,
            eos_token=EOS,
            **extra,
        )
    except Exception as error:
        return f"!{type(error).__name__}: {error}"
    return hashlib.sha256(texts[0].encode()).hexdigest()[:16]


def main() -> None:
    """Renders everything and writes the file beside this script."""
    chat_template_utils.datetime = Clock
    variants = list(itertools.product(CONVERSATIONS, (False, True), (False, True), EXTRAS))
    cases = {
        path.name: [render(path.read_text(encoding="utf-8"), *variant) for variant in variants]
        for path in sorted(Path(sys.argv[1]).glob("*.jinja"))
    }
    golden = {
        "bos": BOS,
        "eos": EOS,
        "conversations": CONVERSATIONS,
        "tools": TOOLS,
        "columns": ["conversation", "tools", "add_generation_prompt", "extra"],
        "variants": variants,
        "cases": cases,
    }
    out = Path(__file__).with_name("templates.json")
    out.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    results = [result for results in cases.values() for result in results]
    print(f"{len(results)} cases, {sum(r.startswith('!') for r in results)} of them errors")


main()
