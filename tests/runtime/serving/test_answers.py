"""Answers of an engine process: those of a context in this process."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import pytest

import kvarn
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.calls import RequestRefused
from kvarn.runtime.serving.prompt import Chat, Reading, Text

from .live import GREEDY, Answer, Live

PROMPT = "It was a bright cold morning, and"


@pytest.fixture(scope="module")
def model() -> Model:
    return load(threads=1)


def alone(model: Model, prompt: str, n: int, **options: object) -> str:
    """The greedy text of a context of its own."""
    with model.context(2048) as context:
        sampler = kvarn.Sampler(temp=0)
        return "".join(context.generate(prompt, n, sampler, **options))  # type: ignore[arg-type]


def test_the_facts_are_those_of_the_model(engine: Live, model: Model) -> None:
    facts = engine.client.facts
    assert facts is not None
    assert (facts.name, facts.path) == (model.name, str(model.path))
    assert (facts.n_ctx, facts.n_vocab) == (2048, model.config.n_vocab)
    assert facts.n_ctx_train == model.config.n_ctx_train


def test_greedy_text_is_that_of_a_context(engine: Live, model: Model) -> None:
    answer = engine.run(engine.answer(PROMPT, max_tokens=40, sampling=GREEDY))
    assert answer.text == alone(model, PROMPT, 40)
    n_prompt = len(model.tokenizer.encode(PROMPT, bos=True))
    assert answer.progress[0].done == 0
    assert answer.progress[-1].done == answer.progress[-1].total == n_prompt
    done = answer.done
    assert done is not None
    assert (done.finish, done.n_prompt, done.n_generated) == ("length", n_prompt, 40)
    assert len(answer.tokens) == 40
    assert model.tokenizer.decode(answer.tokens) == answer.text


@pytest.mark.parametrize("ending", ["length", "stop"])
def test_the_next_turn_has_an_answer_that_was_cut_off(
    engine: Live, model: Model, ending: str
) -> None:
    """With the tokens that were generated, as far as the client was told of them."""
    client, asked = engine.client, [{"role": "user", "content": "Tell me of the mill. " * 8}]

    async def tell(**fields: Any) -> Answer:
        answer = await engine.answer(Chat(asked), sampling=GREEDY, ignore_eos=True, **fields)
        assert answer.done is not None
        await client.remember(answer.done.id, {"role": "assistant", "content": answer.text})
        return answer

    first = engine.run(tell(max_tokens=24))
    tokens = first.tokens
    if ending == "stop":
        said = model.tokenizer.decode(tokens[:14])
        first = engine.run(tell(max_tokens=24, stop=[first.text[len(said) :]]))
        assert first.text == said
        tokens = tokens[:14]
    assert first.done is not None and first.done.finish == ending
    turn = [*asked, {"role": "assistant", "content": first.text}, {"role": "user", "content": "Go"}]
    rendered = engine.run(client.render(Chat(turn), with_ids=True))
    second = engine.run(engine.answer(Chat(turn), max_tokens=1, sampling=GREEDY))
    assert second.done is not None
    after = rendered.text[rendered.text.index(first.text) + len(first.text) :]
    n_known = first.done.n_prompt + len(tokens)
    assert second.done.n_prompt == n_known + len(model.tokenizer.encode(after))
    assert second.done.n_cached == n_known - (ending == "length")


def test_a_prompt_of_many_slices_is_read_as_one(engine: Live, model: Model) -> None:
    prompt = "The mill stood by the river. " * 150
    answer = engine.run(engine.answer(prompt, max_tokens=8, sampling=GREEDY))
    assert answer.text == alone(model, prompt, 8)
    assert len(answer.progress) > 2


def test_seeded_text_is_that_of_a_context(engine: Live, model: Model) -> None:
    answer = engine.run(engine.answer(PROMPT, max_tokens=30, sampling={"seed": 7, "temp": 1.2}))
    with model.context(2048) as context:
        sampler = kvarn.Sampler(seed=7, temp=1.2)
        assert answer.text == "".join(context.generate(PROMPT, 30, sampler))


def test_a_stop_string_ends_an_answer(engine: Live, model: Model) -> None:
    text = alone(model, PROMPT, 40)
    stop = text[20:26]
    answer = engine.run(engine.answer(PROMPT, max_tokens=40, sampling=GREEDY, stop=[stop, "zzz"]))
    assert answer.text == text[: text.index(stop)]
    assert answer.done is not None
    assert (answer.done.finish, answer.done.stop) == ("stop", stop)


def test_ids_are_a_prompt(engine: Live, model: Model) -> None:
    ids = model.tokenizer.encode(PROMPT, bos=True)
    answer = engine.run(engine.answer(ids, max_tokens=10, sampling=GREEDY))
    assert answer.text == alone(model, PROMPT, 10)


def test_no_token_is_generated_where_none_is_asked_for(engine: Live) -> None:
    answer = engine.run(engine.answer(PROMPT, max_tokens=0, echo=True))
    assert answer.text.endswith(PROMPT)
    assert answer.done is not None
    assert (answer.done.finish, answer.done.n_generated) == ("length", 0)


def test_the_end_token_is_told_and_may_be_ignored(engine: Live, model: Model) -> None:
    """A bias makes the token the only one that can be sampled."""
    end = min(model.tokenizer.eog_ids)
    sampling = {**GREEDY, "logit_bias": {str(end): 1000.0}}
    answer = engine.run(engine.answer(PROMPT, max_tokens=3, sampling=sampling))
    assert answer.done is not None
    assert (answer.done.finish, answer.done.n_generated) == ("eos", 0)
    assert answer.done.stop == model.tokenizer.piece(end).decode()
    answer = engine.run(engine.answer(PROMPT, max_tokens=3, sampling=sampling, ignore_eos=True))
    assert len(answer.tokens) == 3
    assert not model.tokenizer.eog_ids & set(answer.tokens)


def test_log_probabilities_belong_to_the_tokens(engine: Live, model: Model) -> None:
    answer = engine.run(engine.answer(PROMPT, max_tokens=6, sampling={**GREEDY, "n_probs": 3}))
    logprobs = [one for pieces in answer.pieces for one in pieces.logprobs]
    assert [one.token for one in logprobs] == answer.tokens
    with model.context(2048) as context:
        context.prefill(PROMPT)
        logits = context.logits.astype(float)
        for one in logprobs:
            logs = logits - logits.max() - math.log(sum(map(math.exp, logits - logits.max())))
            assert one.logprob == pytest.approx(logs[one.token], abs=1e-6)
            assert [token for token, _, _ in one.top] == list((-logs).argsort(kind="stable")[:3])
            assert one.piece == model.tokenizer.piece(one.token)
            logits = context.decode(one.token).astype(float)


def test_a_full_context_ends_an_answer(engine: Live) -> None:
    answer = engine.run(engine.answer(PROMPT, n_ctx=12, sampling=GREEDY, ignore_eos=True))
    assert answer.done is not None
    assert answer.done.finish == "context"
    assert answer.done.n_prompt + answer.done.n_generated == 13  # the last one is not read


def test_requests_at_once_get_the_answers_of_each_alone(engine: Live, model: Model) -> None:
    prompts = [f"{word} {PROMPT} {i}" for i, word in enumerate(PROMPT.split() * 11)][:64]

    async def all_at_once() -> list[str]:
        answers = [engine.answer(p, max_tokens=8, sampling=GREEDY) for p in prompts]
        return [answer.text for answer in await asyncio.gather(*answers)]

    assert engine.run(all_at_once()) == [alone(model, prompt, 8) for prompt in prompts]


def test_a_chat_is_rendered_and_ends_where_the_next_turn_begins(engine: Live) -> None:
    chat = Chat([{"role": "user", "content": "Hello"}])
    rendered = engine.run(engine.client.render(chat, with_ids=True))
    assert rendered.text == "### User:\nHello\n\n### Assistant:\n"
    assert len(rendered.ids) == rendered.n_tokens == len(rendered.pieces)
    answer = engine.run(engine.answer(chat, max_tokens=4, sampling=GREEDY))
    assert answer.done is not None
    assert answer.done.n_prompt == rendered.n_tokens


def test_an_answer_is_gone_on_with(engine: Live) -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good d"}]
    rendered = engine.run(engine.client.render(Chat(messages, continues=True)))
    assert rendered.text == "### User:\nHello\n\n### Assistant:\nGood d"


def test_methods_of_a_request_are_used(engine: Live, model: Model) -> None:
    prompt = "The mill stood by the river. " * 60
    reading = Reading(words={"method": "topk", "budget": "5%"})
    answer = engine.run(engine.answer(prompt, max_tokens=12, sampling=GREEDY, reading=reading))
    with model.context(2048, kvarn.TopK(budget="5%")) as context:
        sampler = kvarn.Sampler(temp=0)
        assert answer.text == "".join(context.generate(prompt, 12, sampler))


@pytest.mark.parametrize(
    ("prompt", "fields", "kind", "words"),
    [
        ([], {}, "invalid", "empty"),
        ([1, 10**6], {}, "invalid", "1000000"),
        (Text("a " * 4000), {}, "too long", "2,048"),
        (Text("a"), {"sampling": {"temperature": 1}}, "invalid", "temperature"),
        (Text("a"), {"sampling": {"top_p": 7}}, "invalid", "top_p"),
        (Text("a"), {"sampling": {"logit_bias": {"99999999": 1.0}}}, "invalid", "token 99999999"),
        (Text("a"), {"reading": Reading(pack="x" * 300)}, "invalid", "at most 200 bytes"),
        (Text("a"), {"max_tokens": -1}, "invalid", "max_tokens"),
        (Text("a"), {"max_tokens": "x"}, "invalid", "max_tokens"),
        (Text("a"), {"reading": Reading(words={"methot": "x"})}, "invalid", "methot"),
        (Text("a"), {"reading": Reading(words={"method": "x"})}, "invalid", "method"),
        (Text("a"), {"reading": Reading(words={"budget": "1%"})}, "invalid", "budget"),
        (Chat([]), {}, "invalid", "messages"),
        (Chat([{"role": "user"}], extra={"tools": 1}), {}, "invalid", "tools"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(
    engine: Live, prompt: object, fields: dict[str, object], kind: str, words: str
) -> None:
    with pytest.raises(RequestRefused, match=words) as error:
        engine.run(engine.answer(prompt, **fields))  # type: ignore[arg-type]
    assert error.value.refused.kind == kind
    assert "\n" not in str(error.value)
    assert engine.run(engine.answer("a", max_tokens=1)).done is not None


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_answer_matches_its_constraint(engine: Live, ignore_eos: bool) -> None:
    constraint = Form("regex", "[a-z]{3}-[0-9]{2}")
    answer = engine.run(
        engine.answer(PROMPT, max_tokens=40, constraint=constraint, ignore_eos=ignore_eos)
    )
    assert re.fullmatch(constraint.value, answer.text)
    assert answer.done is not None and answer.done.finish == "eos"


def test_a_constraint_that_cannot_be_used_is_refused(engine: Live) -> None:
    with pytest.raises(RequestRefused, match="unclosed group"):
        engine.run(engine.answer(PROMPT, constraint=Form("regex", "a(b")))


def test_a_text_alone_has_the_tokenizers_ids(engine: Live, model: Model) -> None:
    for text in ("The mill", " ", model.tokenizer.text_of(min(model.tokenizer.eog_ids))):
        prompt = Text(text, special=True)
        made = engine.run(engine.client.render(prompt, with_ids=True, alone=True))
        assert made.ids == model.tokenizer.encode(text, special=True)
        whole = engine.run(engine.client.render(prompt, with_ids=True))
        assert whole.ids == model.tokenizer.encode(text, bos=True, special=True)
