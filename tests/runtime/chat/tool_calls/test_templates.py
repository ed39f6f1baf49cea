"""Calls that templates render are read as the same calls; constraints let models write them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.runtime.chat.template import ChatTemplate
from kvarn.runtime.chat.tool_calls import after_reasoning, constraint_for
from kvarn.runtime.chat.tool_calls.parser import format_of
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.sampling import Constraint, Sampler
from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.tokenizer import Tokenizer, load_tokenizer

from .cases import (
    FUNCTION_GEMMA,
    GEMMA,
    GLM,
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    NOW,
    OSLO,
    PLAIN,
    THINKS,
    TOOLS,
    XML,
    said,
)

# Templates of the test data, and the format that each one has.
REAL = {
    "Qwen-Qwen2.5-7B-Instruct": "Hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "Hermes",
    "MiMo-VL": "Hermes",
    "ibm-granite-granite-4.0": "Hermes",
    "Qwen3-Coder": "QwenXml",
    "StepFun3.5-Flash": "QwenXml",
    "GLM-4.7-Flash": "Glm",
    "poolside-Laguna-XS-2.1": "Glm",
    "inclusionai-ling-3.0-flash": "Glm",
    "meta-llama-Llama-3.2-3B-Instruct": "Llama",
    "mistralai-Mistral-Nemo-Instruct-2407": "Mistral",
    "Mistral-Small-3.2-24B-Instruct-2506": "Mistral",
    "unsloth-mistral-Devstral-Small-2507": "Mistral",
    "google-gemma-4-31B-it": "Gemma",
}
ENDS = (
    *["<|im_end|>", "<|eot_id|>", "</s>", "<turn|>", "<|user|>", "<|observation|>", "</assistant>"],
    *["<|role_end|>", "<|tool_response>", "<|end_of_text|>"],
)
USER = {"role": "user", "content": "Weather?"}


def read_template(data_dir: Path, name: str) -> str:
    return (data_dir / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def rendered(source: str, calls: list[tuple[str, Any]]) -> tuple[str, str]:
    """The prompt before an answer, and the answer that makes these calls as the template has it."""
    template = ChatTemplate(
        source, bos_token="<s>", eos_token="</s>", now=lambda: datetime(2026, 1, 2)
    )
    given = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": values}}
        for i, (name, values) in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": given}
    without = template.render([USER], tools=TOOLS, add_generation_prompt=False)
    before = template.render([USER], tools=TOOLS)
    text = template.render([USER, answer], tools=TOOLS, add_generation_prompt=False)
    shared = next(n for n in range(len(before), 0, -1) if text.startswith(before[:n]))
    assert shared >= len(without) - 1
    if "<" in text[:shared].rpartition(">")[2]:  # the two go on with other tags
        shared = text.rindex("<", 0, shared)
    text = text[shared:]
    first = min((text.index(end) for end in ENDS if end in text), default=len(text))
    return str(before), text[:first]


ODD = ("get_weather", {"city": 'Å "b"\n</x> {c}', "days": -3, "metric": False, "hours": [1, 2],
                       "where": {"k": "v", "n": [None, 1.5]}})  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize("calls", [[OSLO], [OSLO, NOW], [ODD]], ids=["one", "two", "odd"])
@pytest.mark.parametrize("name", REAL)
def test_a_rendered_call_is_read_as_the_same_call(
    data_dir: Path, name: str, calls: list[tuple[str, Any]]
) -> None:
    source = read_template(data_dir, name)
    assert type(format_of(source)).__name__ == REAL[name]
    if REAL[name] == "Llama" and len(calls) > 1:
        pytest.skip("this template renders one call alone")
    before, answer = rendered(source, calls)
    result = said(source, answer, TOOLS, before[-40:])
    assert [(n, json.loads(a)) for n, a in result.calls] == calls
    assert result.text.strip() == ""
    assert said(source, list(answer), TOOLS, before[-40:]) == result


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(default_model_path())


def written(tokenizer: Tokenizer, asked: Form, wanted: str = "", n: int = 900) -> tuple[str, bool]:
    """The answer that random logits give, which prefer the tokens of `wanted` and short texts."""
    constraint = Constraint(asked.kind, asked.value, asked.trigger, asked.after)
    state = Sampler(temp=1, top_k=0, top_p=1, min_p=0, seed=3, constraint=constraint).start(
        tokenizer
    )
    random, ids, first = np.random.default_rng(4), [], tokenizer.encode(wanted)
    likes = np.array([2.0 if b"<" in tokenizer.piece(i) or b"/" in tokenizer.piece(i) else 0.0
                      for i in range(tokenizer.n_vocab)], np.float32)  # fmt: skip
    for i in range(n):
        logits = random.normal(size=tokenizer.n_vocab).astype(np.float32) + likes
        if i < len(first):
            logits[first[i]] = 1000
        elif i % 12 == 0:  # ends of texts, which would be rare
            logits[[tokenizer.encode(end)[0] for end in ("\n</", "</", '<|"', "<esc")]] += 5
        token = state.sample(logits)
        if token in tokenizer.eog_ids:
            return tokenizer.decode(ids).removeprefix(" "), True
        state.accept(token)
        ids.append(token)
        if state.is_complete:
            return tokenizer.decode(ids).removeprefix(" "), True
    return tokenizer.decode(ids).removeprefix(" "), False


SMALL: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "$defs": {"N": {"type": "integer", "minimum": -9, "maximum": 9}},
                "properties": {"a": {"$ref": "#/$defs/N"}, "b": {"$ref": "#/$defs/N"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
     "properties": {"utc": {"type": "boolean"}}, "additionalProperties": False}}},
]  # fmt: skip
ALL = {
    "hermes": HERMES,
    "xml": XML,
    "glm": GLM,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mistral, named": "[TOOL_CALLS][ARGS][CALL_ID]",
    "harmony": HARMONY,
    "gemma": GEMMA,
    "function gemma": FUNCTION_GEMMA,
    "other": PLAIN,
}
THOUGHTS = {
    "xml": "<think>x</think>",
    "glm": "<think>x</think>",
    "mistral": "[THINK]x[/THINK]",
    "gemma": "<|channel>thought\nx<channel|>",
}


def assert_calls(values: list[tuple[str, Any]], names: set[str]) -> None:
    assert values
    for name, arguments in values:
        assert name in names
        if name == "add":
            assert arguments.keys() == {"a", "b"}
            assert all(type(n) is int for n in arguments.values())
        else:
            assert arguments.keys() <= {"utc"}
            assert all(isinstance(n, bool) for n in arguments.values())


@pytest.mark.parametrize("choice", ["required", "add"])
@pytest.mark.parametrize("name", ALL)
def test_a_required_call_is_written_and_read(tokenizer: Tokenizer, name: str, choice: str) -> None:
    asked = constraint_for(ALL[name], SMALL, choice, one_call=True)
    assert asked is not None
    answer, ended = written(tokenizer, asked, THOUGHTS.get(name, ""))
    result = said(ALL[name], answer, SMALL)
    assert ended and not result.text, answer
    assert_calls(result.values, {"add", "now"} if choice == "required" else {"add"})


@pytest.mark.parametrize("name", ALL)
def test_an_optional_call_is_well_formed_where_it_begins(tokenizer: Tokenizer, name: str) -> None:
    asked = constraint_for(ALL[name], SMALL, "auto")
    if name in ("llama", "other"):
        assert asked is None  # nothing marks a call
        return
    assert asked is not None
    answer, _ = written(tokenizer, asked, f"Well: {asked.trigger[0]}", 120)
    result = said(ALL[name], answer, SMALL)
    assert_calls(result.values[:1], {"add", "now"})


def test_several_calls_may_be_required(tokenizer: Tokenizer) -> None:
    asked = constraint_for(HERMES, SMALL, "required")
    assert asked is not None
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    answer, _ = written(tokenizer, asked, f"{call}\n{call}")
    assert len(said(HERMES, answer, SMALL).ended) >= 2


def test_no_choice_and_no_tools_constrain_nothing() -> None:
    assert constraint_for(HERMES, SMALL, "none") is None
    assert constraint_for(HERMES, [], "required") is None
    assert constraint_for(HERMES, None, "auto") is None
    ways = ["add", {"type": "function", "function": {"name": "add"}}, {"name": "add"}]
    by_name = [constraint_for(HERMES, SMALL, one) for one in ways]
    assert by_name[0] == by_name[1] == by_name[2] is not None


def test_a_form_of_the_answer_begins_behind_its_reasoning(tokenizer: Tokenizer) -> None:
    asked = Form("regex", "[0-9]{3}")
    after = after_reasoning(asked, THINKS, "<think>\n")
    answer, ended = written(tokenizer, after, "so</think>")
    result = said(THINKS, answer, SMALL, "<think>\n")
    assert ended and result.reasoning == "so" and len(result.text) == 3
    assert after_reasoning(asked, THINKS, "</think>\n") == asked
    assert after_reasoning(asked, PLAIN, "<think>\n") == asked
