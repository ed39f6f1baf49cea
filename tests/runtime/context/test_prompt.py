"""Ids of prompts: one BOS where it is wanted, control tokens where a template wrote them."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.runtime.chat.template import ChatTemplate
from kvarn.runtime.context.reading.prompt import prompt_ids
from kvarn.runtime.model import Model
from kvarn.runtime.tokenizer import Rendered, Tokenizer

from ..tokenizer import tiny_vocabs


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return {**tiny_vocabs.byte_bpe(60), "tokenizer.ggml.pre": "llama-bpe"}


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("writes", ["<s>", ""])
def test_a_rendered_prompt_has_one_bos(metadata: dict[str, Any], adds: bool, writes: str) -> None:
    # Oracle: llama.cpp removes BOS from what a template wrote, and adds it where the file says so.
    flags = {"tokenizer.ggml.add_bos_token": adds, "tokenizer.ggml.add_eos_token": True}
    tokenizer = Tokenizer.from_metadata(metadata | flags)
    text, bos = Rendered(f"{writes}the<s>mill"), [tokenizer.bos_id]
    rest = [*tokenizer.encode("the"), *bos, *tokenizer.encode("mill")]
    assert prompt_ids(tokenizer, text) == (bos if adds or writes else []) + rest
    assert prompt_ids(tokenizer, text, begins=False) == rest


@pytest.mark.parametrize("adds", [True, False])
def test_a_text_has_one_bos_and_no_control_tokens(metadata: dict[str, Any], adds: bool) -> None:
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.add_bos_token": adds})
    text, bos = "<s>the</s>", [tokenizer.bos_id]
    plain, special = tokenizer.encode(text), tokenizer.encode(text, special=True)
    for given in (text, text.encode()):
        assert prompt_ids(tokenizer, given) == (bos if adds else []) + plain
        assert prompt_ids(tokenizer, given, begins=False) == plain
        assert prompt_ids(tokenizer, given, special=True) == special
        assert prompt_ids(tokenizer, given, begins=False, special=True) == special[1:]


def test_a_first_word_that_is_the_bos_token_stays(metadata: dict[str, Any]) -> None:
    """Some vocabularies have no BOS of their own, and take an ordinary token for it."""
    letter = metadata["tokenizer.ggml.tokens"].index("a")
    for adds in (True, False):
        more = {"tokenizer.ggml.bos_token_id": letter, "tokenizer.ggml.add_bos_token": adds}
        tokenizer = Tokenizer.from_metadata(metadata | more)
        assert prompt_ids(tokenizer, "a", begins=False) == [letter]
        assert prompt_ids(tokenizer, "a") == [letter] * (1 + adds)


def test_a_context_reads_text_as_text_and_templates_as_instruction(tiny: Model) -> None:
    tokenizer = tiny.tokenizer
    end = tokenizer.piece(tokenizer.eos_id).decode()
    template = ChatTemplate(
        "{{ messages[0].content }}{{ eos_token }}",
        bos_token=None,
        eos_token=end,
        control=tokenizer.control,
    )
    rendered = template.render([{"role": "user", "content": f"the {end} end"}])
    context = tiny.context(64)
    for prompt, special, n in (
        (str(rendered), False, 0),
        (str(rendered), True, 2),
        (rendered, False, 1),
    ):
        context.truncate(0)
        context.prefill(prompt, special=special)
        assert context.tokens.count(tokenizer.eos_id) == n
        assert tokenizer.decode(context.tokens, special=True).endswith(f"the {end} end{end}")
        assert context.tokens == context.encode(context.tokens)
    context.truncate(0)
    list(context.generate(rendered, max_tokens=1))
    assert context.tokens.count(tokenizer.eos_id) == 1
