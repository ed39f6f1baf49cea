"""`kvarn.Completions` answers requests as `kvarn serve` does, and refuses them by their fields.

Its answers themselves are compared in `tests/compat`.
"""

from typing import Any

import pytest

import kvarn
from kvarn.runtime.chat.openai.errors import RequestError
from kvarn.runtime.chat.template import ChatTemplate

PROMPT = "The captain of the ship"
HELLO: Any = [{"role": "user", "content": "Where is the ship?"}]
LOOK: Any = {"type": "function", "function": {"name": "look"}}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
THINKING = "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '<think>\n' }}{# </think> #}"


@pytest.fixture(scope="module")
def model() -> kvarn.Model:
    return kvarn.load()


@pytest.fixture
def answers(model: kvarn.Model) -> kvarn.Completions:
    return kvarn.Completions(model.context(512))


def test_a_request_draws_as_the_sampler_and_its_fields_say(model: kvarn.Model) -> None:
    """Fields replace options; the model has its own name unless it is called another."""
    greedy = kvarn.Completions(model.context(512), kvarn.Sampler(temp=0), name="mill")
    said = [greedy.complete(PROMPT, max_tokens=8, **one) for one in ({}, {"top_k": 1})]
    assert said[0]["choices"] == said[1]["choices"] and said[0]["model"] == "mill"  # type: ignore[index]
    first = model.tokenizer.encode(said[0]["choices"][0]["text"])[0]  # type: ignore[index]
    other = greedy.complete(PROMPT, max_tokens=8, logit_bias={str(first): -100})
    assert other["choices"] != said[0]["choices"]  # type: ignore[index]
    plain = kvarn.Completions(model.context(512)).complete(PROMPT, **GREEDY)
    assert plain["choices"] == said[0]["choices"] and plain["model"] == model.name  # type: ignore[index]


def test_a_form_stands_behind_the_reasoning(
    answers: kvarn.Completions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the prompt opens it, as in the server: what is thought before is free."""
    pytest.importorskip("llguidance", reason="forms need llguidance")
    aye: Any = {"type": "json_schema", "json_schema": {"schema": {"const": "aye"}}}
    asked: dict[str, Any] = {"response_format": aye, **GREEDY}
    [plain] = answers.chat(HELLO, **asked)["choices"]  # type: ignore[index]
    assert plain["message"] == {"role": "assistant", "content": '"aye"'}
    template = ChatTemplate(THINKING, bos_token=None, eos_token=None)
    monkeypatch.setattr(ChatTemplate, "of", lambda model: template)
    [thinking] = answers.chat(HELLO, **asked)["choices"]  # type: ignore[index]
    assert thinking["finish_reason"] == "length"
    assert thinking["message"]["reasoning_content"] and not thinking["message"]["content"]


def test_a_context_that_evicts_takes_longer_prompts(model: kvarn.Model) -> None:
    context = model.context(64, keep=kvarn.Streaming())
    said = kvarn.Completions(context).complete(PROMPT * 20, **GREEDY)
    assert said["usage"]["prompt_tokens"] > 64  # type: ignore[index]
    assert said["usage"]["completion_tokens"] == 8  # type: ignore[index]
    with pytest.raises(RequestError, match=r"Requested tokens .* exceed context window of 64"):
        kvarn.Completions(model.context(64)).complete(PROMPT * 20)


def test_results_of_tools_have_the_names_of_their_calls(
    model: kvarn.Model, answers: kvarn.Completions, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "{% for m in messages %}{{ m.name }}: {{ m.content }}\n{% endfor %}"
    template = ChatTemplate(named, bos_token=None, eos_token=None)
    monkeypatch.setattr(ChatTemplate, "of", lambda model: template)
    call: Any = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
    result: Any = {"role": "tool", "tool_call_id": "c1", "content": "a mast"}
    answers.chat([*HELLO, asked, result], max_tokens=1)
    assert "look: a mast" in model.tokenizer.decode(answers.context.tokens)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"messages": "Where is the ship?"}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [LOOK], "tool_choice": "look"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [LOOK], "tool_choice": {"function": {"name": "lock"}}},
            "tool_choice.function.name",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"temperature": "hot"}, "temperature"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"grammar": "root"}, "grammar"),
        ({"constraint": None, "colour": 1}, "colour"),
    ],
)
def test_a_request_is_refused_by_its_field(
    answers: kvarn.Completions, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError, match=r"expected|missing|no argument") as refused:
        answers.chat(**{"messages": HELLO, "max_tokens": 1, **asked})
    assert refused.value.field == field and isinstance(refused.value, ValueError)
    assert not answers.context.tokens
