"""LangChain's and LlamaIndex's integrations of llama-cpp-python run unchanged with it."""

import importlib
import sys
from typing import Any

import pytest

import kvarn.compat
from kvarn.runtime.loading.default_model import default_model_path

PATH = str(default_model_path())
PROMPT = "The captain of the ship"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}


@pytest.fixture(autouse=True)
def stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", kvarn.compat)
    for name in [one for one in sys.modules if one.startswith("llama_index.llms.llama_cpp")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture(scope="module")
def plain() -> kvarn.compat.Llama:
    return kvarn.compat.Llama(PATH, n_ctx=256, verbose=False)


def community(name: str) -> Any:
    pytest.importorskip("langchain_community", reason="langchain-community is not installed")
    return importlib.import_module(f"langchain_community.{name}.llamacpp")


def test_langchain_completes(plain: kvarn.compat.Llama) -> None:
    llm = community("llms").LlamaCpp(model_path=PATH, n_ctx=256, verbose=False, **GREEDY)
    expected = plain(PROMPT, **GREEDY, repeat_penalty=1.1)["choices"][0]["text"]
    assert llm.invoke(PROMPT) == expected
    assert "".join(llm.stream(PROMPT)) == expected
    assert llm.get_num_tokens("a ship") == len(plain.tokenize(b"a ship"))
    stop = expected.split()[1]
    assert llm.invoke(PROMPT, stop=[stop]) == expected.partition(stop)[0]


def test_langchain_chats(plain: kvarn.compat.Llama) -> None:
    llm = community("chat_models").ChatLlamaCpp(model_path=PATH, n_ctx=256, verbose=False, **GREEDY)
    messages = [{"role": "user", "content": PROMPT}]
    said = plain.create_chat_completion(messages, **GREEDY)["choices"][0]["message"]["content"]
    assert llm.invoke([("user", PROMPT)]).content == said
    assert "".join(chunk.content for chunk in llm.stream([("user", PROMPT)])) == said


def test_langchain_calls_tools() -> None:
    pytest.importorskip("llguidance", reason="tools need llguidance")
    llm = community("chat_models").ChatLlamaCpp(
        model_path=PATH, n_ctx=1024, verbose=False, temperature=0.0, max_tokens=300
    )
    parameters = {"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"]}
    parameters |= {"additionalProperties": False}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    bound = llm.bind_tools([tool], tool_choice={"type": "function", "function": {"name": "look"}})
    [call] = bound.invoke([("user", PROMPT)]).tool_calls
    assert call["name"] == "look" and call["args"]["up"] in (True, False)


def test_langchain_embeds(plain: kvarn.compat.Llama) -> None:
    made = community("embeddings").LlamaCppEmbeddings(model_path=PATH, n_ctx=256, verbose=False)
    expected = plain.embed("a ship")
    assert made.embed_query("a ship") == pytest.approx(expected)
    assert made.embed_documents(["a ship", "b"])[0] == pytest.approx(expected)


def test_llama_index_completes_and_chats(plain: kvarn.compat.Llama) -> None:
    pytest.importorskip("llama_index.core", reason="llama-index-llms-llama-cpp is not installed")
    index = pytest.importorskip("llama_index.llms.llama_cpp")
    llm = index.LlamaCPP(
        model_path=PATH,
        temperature=0.0,
        max_new_tokens=8,
        context_window=256,
        messages_to_prompt=lambda messages: messages[-1].content,
        completion_to_prompt=lambda text: text,
        verbose=False,
    )
    expected = plain(PROMPT, **GREEDY)["choices"][0]["text"]
    assert llm.complete(PROMPT).text == expected
    assert [chunk.text for chunk in llm.stream_complete(PROMPT)][-1] == expected
    message = importlib.import_module("llama_index.core.llms").ChatMessage
    asked = [message(role="user", content=PROMPT)]
    assert llm.chat(asked).message.content == expected
    assert [chunk.message.content for chunk in llm.stream_chat(asked)][-1] == expected
    assert llm.metadata.context_window == 256
