"""What stands in the place of a question, and what of a prompt people wrote: tokens are bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.runtime.chat.sandbox.errors import TemplateError
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.lens.passages import Lens, Source
from kvarn.runtime.lens.weights import NEUTRAL, NEUTRAL_ANSWER
from kvarn.runtime.serving.prompt import Chat, Prompt, Text
from kvarn.runtime.serving.requests.contents import contents_of
from kvarn.runtime.serving.requests.lens import lens_steps, neutral_ids
from kvarn.system.errors import KvarnError

BYTES: Any = SimpleNamespace(
    encode=lambda text: list(text.encode()),
    decode=lambda ids: bytes(ids).decode(),
    piece=lambda id: bytes([id]),
)


def rendered(prompt: Prompt) -> list[int]:
    if isinstance(prompt, Chat):
        return BYTES.encode(json.dumps([prompt.messages, prompt.tools, prompt.extra]))
    return BYTES.encode(prompt.text)


def neutral(prompt: Prompt, alone: bool = True) -> str:
    """The text of `neutral_ids`, without the answer."""
    ids = neutral_ids(BYTES, prompt, rendered(prompt), rendered, alone)
    return BYTES.decode(ids).removesuffix(NEUTRAL_ANSWER)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("end", ["", "\n", " \n\n"])
def test_the_last_line_of_a_message_is_replaced(end: str) -> None:
    assert neutral(Chat([user(f"A mill.\nWho?{end}")])) == json.dumps(
        [[user(f"A mill.\n{NEUTRAL}")], None, {}]
    )


def test_after_a_pack_all_of_the_message_is_replaced_and_the_rest_stays() -> None:
    tools, extra = [{"type": "function"}], {"enable_thinking": False}
    chat = Chat([user("Hello"), user("A mill.\nWho?")], tools, extra)
    assert neutral(chat, False) == json.dumps([[user("Hello"), user(NEUTRAL)], tools, extra])


def test_an_answer_that_is_gone_on_with_is_no_question() -> None:
    begun = {"role": "assistant", "content": "The"}
    chat = Chat([user("Hello"), user("Who?"), begun], continues=True)
    assert neutral(chat) == json.dumps([[user("Hello"), user(NEUTRAL)], None, {}])


@pytest.mark.parametrize(
    ("text", "alone", "stays"),
    [
        ("A mill.\nWho?", True, "A mill.\n"),
        ("A mill.\nWho?\n", True, "A mill.\n"),
        ("A mill.\n" + 31 * "w", True, "A mill.\n"),
        ("A mill.\n" + 40 * "w", True, "A mill.\n" + 8 * "w"),
        ("Who?", True, ""),
        ("A mill.\nWho?", False, ""),
    ],
)
def test_the_last_line_of_a_text_is_replaced(text: str, alone: bool, stays: str) -> None:
    """Or the last 32 tokens of it."""
    assert neutral(Text(text), alone) == f"{stays}{NEUTRAL} "


def test_an_error_while_it_is_weighed_is_told_in_the_lens() -> None:
    def refuse(request: ContextRequest) -> Any:
        raise KvarnError("no room\nfor it")

    document = BYTES.encode("The mill stood.")
    tokens, sources = ([*document, 1], [*document, 2]), [Source(0, len(document))]
    steps = lens_steps(refuse, ContextRequest(), *tokens, sources, BYTES)
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(64)
    assert end.value.value == Lens(note="nothing could be weighed: no room for it")


Messages = Sequence[dict[str, Any]]


def chatml(messages: Messages) -> str:
    """With a system text of its own, as templates have one, and without thinking."""
    turns = [{"role": "system", "content": "You are helpful, user."}, *messages]
    written = (
        f"<|im_start|>{turn['role']}\n{turn['content'].rpartition('</think>')[2].strip()}<|im_end|>\n"
        for turn in turns
    )
    return "".join(written) + "<|im_start|>assistant\n"


def plain(messages: Messages) -> str:
    return "".join(f"### {turn['role']}:\n{turn['content']}\n\n" for turn in messages) + "###:"


def bare(messages: Messages) -> str:
    return "\n".join(turn["content"] for turn in messages)


def sources_of(messages: Messages, render: Callable[[Messages], str]) -> list[tuple[str, str]]:
    """The texts without white space, and their names."""
    ids = BYTES.encode(render(messages))
    sources = contents_of(BYTES, messages, ids, render)
    assert sources is not None
    return [(squeezed(BYTES.decode(ids[one.start : one.stop])), one.name) for one in sources]


def squeezed(text: str) -> str:
    return re.sub(r"[ \t\n\r\v\f]", "", text)


WORDS = [
    "user",
    "a",
    "<|im_end|>\n<|im_start|>user\n",
    "You are helpful",
    "###",
    ":",
    "\n",
    " ",
    "é",
]


@pytest.mark.parametrize("render", [chatml, plain, bare])
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=5).map("".join), min_size=1, max_size=4))
def test_contents_are_what_people_wrote(
    render: Callable[[Messages], str], texts: list[str]
) -> None:
    """Also where it spells what the template writes; of the last message without its last line."""
    messages = [user(text) for text in texts]
    names = [f"message {i}, " if len(texts) > 1 else "" for i in range(1, len(texts) + 1)]
    told = [*texts[:-1], texts[-1].rstrip().rpartition("\n")[0]]
    expected = [(squeezed(text), name) for text, name in zip(told, names) if text.strip()]
    assert sources_of(messages, render) == expected


def test_an_answer_stands_in_a_prompt_as_it_was_generated() -> None:
    messages = [user("Who?"), {"role": "assistant", "content": "I."}, user("So.\nWhy?")]
    ids = BYTES.encode(chatml(messages).replace("I.", "<think>Me?</think> I."))
    sources = contents_of(BYTES, messages, ids, chatml)
    assert sources is not None
    told = [squeezed(BYTES.decode(ids[one.start : one.stop])) for one in sources]
    assert told == ["Who?", "<think>Me?</think>I.", "So."]


def test_parts_of_a_content_are_found_and_what_is_no_text_is_not() -> None:
    parts = [{"type": "text", "text": "A mill."}, {"type": "text", "text": "Who?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]

    def render(messages: Messages) -> str:
        return "[" + "|".join(part["text"] for part in messages[0]["content"]) + "]"

    named = [("Amill.", "message 1, "), ("Who?", "message 1, ")]
    assert sources_of(messages, render) == named


def told_at_once(tokens: list[int], neutral: list[int], sources: list[Source] | None) -> str:
    """The note of a lens for which nothing is read."""
    steps = lens_steps(pytest.fail, ContextRequest(), tokens, neutral, sources, BYTES)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert not end.value.value.passages
    return end.value.value.note


def test_a_template_that_looks_at_what_messages_say_is_not_guessed_about() -> None:
    def refuse(messages: Messages) -> str:
        raise TemplateError("expected another text")

    def turned(messages: Messages) -> str:
        return f"[{'one' if messages[0]['content'] == 'Who?' else 'two'}]{messages[0]['content']}"

    for render in (refuse, turned):
        sources = contents_of(BYTES, [user("Who?")], BYTES.encode("[one]Who?"), render)
        assert sources is None
    assert "the chat template does not tell" in told_at_once([1] * 9, [1] * 9, None)


def test_what_the_template_writes_is_no_document() -> None:
    """Where nothing but it stands before the question."""
    tokens, neutral = (BYTES.encode(chatml([user(text)])) for text in ("Who?", "Is it?"))
    sources = contents_of(BYTES, [user("Who?")], tokens, chatml)
    assert told_at_once(tokens, neutral, sources) == "nothing stands before the question"
