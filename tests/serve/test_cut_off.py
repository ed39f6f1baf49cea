"""An answer that a limit cuts off says so in the terms of each API: what should be JSON is none."""

from typing import Any

import anthropic
import ollama
import openai
import pytest
from pydantic import BaseModel

from .fake_engine import FakeEngine

HELLO: Any = [{"role": "user", "content": "Hi"}]
LIMIT = 2


class Place(BaseModel):
    city: str


SCHEMA: Any = Place.model_json_schema()


@pytest.fixture(autouse=True)
def half(engine: FakeEngine) -> None:
    engine.answer = ['{"city": ', '"Ume', 'å"}']


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def test_openais_client_raises(client: openai.OpenAI) -> None:
    asked: Any = {"model": "toy", "messages": HELLO, "response_format": Place}
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked, max_tokens=LIMIT)
    whole = client.chat.completions.parse(**asked, max_tokens=3)
    assert whole.choices[0].message.parsed == Place(city="Umeå")
    with (
        pytest.raises(openai.LengthFinishReasonError),
        client.chat.completions.stream(**asked, max_tokens=LIMIT) as events,
    ):
        list(events)


def test_responses_are_incomplete(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    answer = client.responses.create(model="toy", input="Hi", text=form, max_output_tokens=LIMIT)
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == '{"city": "Ume'


def test_anthropics_reason_is_the_limit(address: str) -> None:
    client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    form = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    answer = client.messages.create(model="toy", max_tokens=LIMIT, messages=HELLO, extra_body=form)
    assert answer.stop_reason == "max_tokens"


def test_ollamas_reason_is_the_length(address: str) -> None:
    client = ollama.Client(address)
    answer = client.chat("toy", HELLO, format=SCHEMA, options={"num_predict": LIMIT})
    assert answer.done_reason == "length"
