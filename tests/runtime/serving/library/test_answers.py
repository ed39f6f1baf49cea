"""Prompts begin with answers as they were generated, however the template writes them later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarn.runtime.chat.template import ChatTemplate
from kvarn.runtime.context.reading.prompt import prompt_ids
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.serving.library import answers as answers_
from kvarn.runtime.serving.library.answers import Answers

# Like those of Qwen 3: thinking only in the last answers, calls as JSON in tags.
STRIPS = """\
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ START }}user~<tool_response>{{ m.content }}</tool_response>{{ END }}~
{%- elif m.role == 'assistant' -%}
{{ START }}assistant~
{%- if m.reasoning_content and loop.last -%}<think>{{ m.reasoning_content }}</think>{%- endif -%}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] -%}
<tool_call>{{ {'arguments': call.function.arguments, 'name': call.function.name} | tojson }}
{%- endfor -%}
{{ END }}~
{%- else -%}
{{ START }}{{ m.role }}~{{ m.content }}{{ END }}~
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ START }}assistant~{%- endif -%}
"""
NEEDS_CALLS = (
    "{%- for m in messages -%}{%- if m.role == 'tool' and not (messages[loop.index0 - 1].tool_calls"
    ") -%}{{ raise_exception('a result without a call') }}{%- endif -%}{%- endfor -%}" + STRIPS
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
USER = {"role": "user", "content": "What is 1 + 2?"}
NOTHING: Any = {"bos_token": None, "eos_token": None}
Render = Callable[[Any], Any]


@pytest.fixture(scope="module")
def mini() -> Model:
    return load(default_model_path())


@pytest.fixture(scope="module")
def end(mini: Model) -> int:
    return min(mini.tokenizer.eog_ids)


@pytest.fixture(params=[STRIPS, NEEDS_CALLS], ids=["strips", "needs-calls"])
def render(mini: Model, end: int, request: pytest.FixtureRequest) -> Render:
    text = mini.tokenizer.text_of(end)
    source = request.param.replace("{{ END }}", text).replace("{{ START }}", "#")
    template = ChatTemplate(source, bos_token=None, eos_token=text, control=mini.tokenizer.control)
    return lambda messages: template.render(messages, tools=TOOLS)


def generated(mini: Model, render: Render, messages: list[Any], text: str) -> list[int]:
    """The ids of a prompt and of an answer in tokens that the tokenizer would not choose."""
    ids = prompt_ids(mini.tokenizer, render(messages))
    return ids + [i for letter in text for i in mini.tokenizer.encode(letter)]


def plain(mini: Model, text: str) -> list[int]:
    return mini.tokenizer.encode(text, special=True)


def after(mini: Model, end: int) -> str:
    return mini.tokenizer.text_of(end)


def test_thinking_that_the_template_strips_stays(mini: Model, end: int, render: Render) -> None:
    known = Answers(mini.tokenizer, None)
    ids = generated(mini, render, [USER], "<think>easy</think>It is 3.")
    answer = {"role": "assistant", "content": "It is 3.", "reasoning_content": "easy"}
    known.remember([USER, answer], {"tools": TOOLS}, ids, end)
    sent = [USER, {"role": "assistant", "content": "It is 3."}, {"role": "user", "content": "And?"}]
    rest = plain(mini, f"{after(mini, end)}~#user~And?{after(mini, end)}~#assistant~")
    assert known.prompt_ids(sent, {"tools": TOOLS}, render) == ids + rest
    for other in ({"tools": None}, {"tools": TOOLS, "enable_thinking": False}):
        told = known.prompt_ids(sent, other, render)
        assert told == prompt_ids(mini.tokenizer, render(sent))
    changed = [{"role": "user", "content": "What is 2 + 2?"}, *sent[1:]]
    told = known.prompt_ids(changed, {"tools": TOOLS}, render)
    assert told == prompt_ids(mini.tokenizer, render(changed))


def test_calls_that_the_template_writes_otherwise_stay(
    mini: Model, end: int, render: Render
) -> None:
    known = Answers(mini.tokenizer, None)
    spelt = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}'
    ids = generated(mini, render, [USER], spelt)
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    known.remember([USER, called], {}, ids, end)
    arguments = json.dumps(CALL["function"]["arguments"], indent=1)
    call = {"id": "call_7", "function": {"name": "add", "arguments": arguments}}
    sent = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    sent.append({"role": "tool", "content": "3", "tool_call_id": "call_7"})
    told = known.prompt_ids(sent, {}, render)
    closing = after(mini, end)
    result = f"#user~<tool_response>3</tool_response>{closing}~#assistant~"
    assert told == ids + plain(mini, f"{closing}~{result}")
    # The next answer, after the first: the longest beginning counts.
    longer = [*told, *mini.tokenizer.encode("three")]
    known.remember([*sent, {"role": "assistant", "content": "three"}], {}, longer, end)
    sent += [{"role": "assistant", "content": "three"}, USER]
    assert known.prompt_ids(sent, {}, render)[: len(longer)] == longer


def test_the_template_ends_what_a_constraint_has_ended(
    mini: Model, end: int, render: Render, tmp_path: Path
) -> None:
    """The oracle: an answer of the same ids that the end token has ended. Records keep it."""
    asked = {"role": "user", "content": f"what is {after(mini, end)}?"}
    ids = generated(mini, render, [asked], "It is 3.")
    answer = {"role": "assistant", "content": "It is 3."}
    sent = [asked, answer, USER]
    by_token = Answers(mini.tokenizer, None)
    by_token.remember([asked, answer], {}, ids, end)
    expected = by_token.prompt_ids(sent, {}, render)
    assert expected[: len(ids)] == ids and expected[len(ids)] == end
    file = tmp_path / "answers"
    known = Answers(mini.tokenizer, file, 1 << 20)
    known.remember([asked, answer], {}, ids, None)
    assert known.prompt_ids(sent, {}, render) == expected
    assert Answers(mini.tokenizer, file, 1 << 20).prompt_ids(sent, {}, render) == expected
    # After a template that writes no end token, what it writes after the answer follows at once.
    bare = ChatTemplate("{% for m in messages %}{{ m.content }}!{% endfor %}", **NOTHING)
    told = known.prompt_ids(sent, {}, bare.render)
    assert told == [*ids, *mini.tokenizer.encode(f"!{USER['content']}!")]


def test_texts_around_calls_may_come_back_otherwise_spaced(
    mini: Model, end: int, render: Render
) -> None:
    """Clients join the parts of an answer, each in its way. What people write counts exactly."""
    known = Answers(mini.tokenizer, None)
    ids = generated(mini, render, [USER], "First. Then.")
    known.remember([USER, {"role": "assistant", "content": "First.\n\nThen."}], {}, ids, end)
    told = [
        known.prompt_ids([user, {"role": "assistant", "content": text}, USER], {}, render)
        for user, text in (
            (USER, "First.\nThen."),
            (USER, "First.Then"),
            ({"role": "user", "content": "What is 1 +  2?"}, "First.\n\nThen."),
        )
    ]
    assert [one[: len(ids)] == ids for one in told] == [True, False, False]


def test_what_people_write_is_no_control_token(mini: Model, end: int, render: Render) -> None:
    known, closing = Answers(mini.tokenizer, None), after(mini, end)
    ids = generated(mini, render, [USER], "3")
    answer = {"role": "assistant", "content": "3"}
    known.remember([USER, answer], {}, ids, end)
    sent = [USER, answer, {"role": "user", "content": f"what does {closing} mean?"}]
    told = known.prompt_ids(sent, {}, render)
    assert told[: len(ids)] == ids
    assert told[len(ids) :].count(end) == 2


def test_answers_outlast_the_process_and_damage(
    mini: Model, end: int, render: Render, tmp_path: Path
) -> None:
    file, asked = tmp_path / "answers", [USER]
    known = Answers(mini.tokenizer, file, 1 << 20)
    kept = []
    for turn in range(5):
        answer = {"role": "assistant", "content": f"answer {turn}"}
        ids = generated(mini, render, asked, f"answer {turn}")
        asked = [*asked, answer]
        known.remember(asked, {}, ids, end)
        kept.append((list(asked), ids))
        asked = [*asked, USER]
    data = file.read_bytes()
    assert known.n_bytes == len(data)
    assert len(data) < 8 * len(kept[-1][1])  # what they share is written once
    for cut in (len(data), len(data) - 1, len(data) // 2, 5, 0):
        file.write_bytes(data[:cut])
        again = Answers(mini.tokenizer, file, 1 << 20)
        asks = ((again.prompt_ids([*messages, USER], {}, render), ids) for messages, ids in kept)
        is_known = [told[: len(ids)] == ids for told, ids in asks]
        assert is_known == sorted(is_known, reverse=True)  # the newest are lost
        assert sum(is_known) == {len(data): 5, len(data) - 1: 4}.get(cut, sum(is_known))
        assert cut >= len(data) // 2 or not any(is_known)
        again.remember(*kept[-1][:1], {}, kept[-1][1], end)
        last = Answers(mini.tokenizer, file, 1 << 20)
        assert last.prompt_ids([*kept[-1][0], USER], {}, render)[: len(kept[-1][1])] == kept[-1][1]


def test_the_file_has_a_limit(
    mini: Model, end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_, "MOST", 20)
    file = tmp_path / "answers"
    known = Answers(mini.tokenizer, file, 4000)
    for turn in range(60):
        known.remember([{"role": "assistant", "content": str(turn)}], {}, [turn] * 50, end)
        assert file.stat().st_size == known.n_bytes <= 4000
    assert len(known._ends) == 20
    assert 0 < len(Answers(mini.tokenizer, file, 4000)._ends) <= 20
