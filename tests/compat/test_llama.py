"""`kvarn.compat.Llama` answers as kvarn does, in the forms of llama-cpp-python."""

import json
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.compat import Llama, LlamaGrammar, RequestError
from kvarn.runtime.loading.default_model import default_model_path

PROMPT = "The captain of the ship"
HELLO = [{"role": "user", "content": "Where is the ship?"}]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"enum": ["up", "down"]}},
            "required": ["where"],
            "additionalProperties": False,
        },
    },
}
# What langchain-community's LlamaCpp and ChatLlamaCpp send with each model.
LANGCHAIN = {
    "rope_freq_scale": 1.0, "rope_freq_base": 10000.0, "lora_path": None, "lora_base": None,
    "n_ctx": 1024, "n_parts": -1, "seed": -1, "f16_kv": True, "logits_all": False,
    "vocab_only": False, "use_mlock": False, "n_threads": None, "n_batch": 8, "use_mmap": True,
    "last_n_tokens_size": 64, "verbose": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Llama:
    return Llama(str(default_model_path()), **LANGCHAIN)


@pytest.fixture(scope="module")
def model() -> kvarn.Model:
    return kvarn.load()


def whole(chunks: Any) -> str:
    return "".join(chunk["choices"][0].get("text", "") for chunk in chunks)


def test_a_completion_is_what_kvarn_generates(llm: Llama, model: kvarn.Model) -> None:
    context = model.context(256)
    text = "".join(context.generate(PROMPT, 12, kvarn.Sampler(temp=0)))
    said = llm(PROMPT, **GREEDY)
    assert said["choices"] == [
        {"text": text, "index": 0, "logprobs": None, "finish_reason": "length"}
    ]
    n_prompt = len(llm.tokenize(PROMPT.encode()))
    usage = {"prompt_tokens": n_prompt, "completion_tokens": 12, "total_tokens": n_prompt + 12}
    assert said["usage"] == usage and said["object"] == "text_completion"
    assert llm(llm.tokenize(PROMPT.encode()), **GREEDY)["choices"] == said["choices"]
    assert llm(PROMPT, **GREEDY, echo=True)["choices"][0]["text"] == PROMPT + text


def test_chunks_are_the_completion(llm: Llama) -> None:
    chunks = list(llm(PROMPT, **GREEDY, stream=True, echo=True))
    assert whole(chunks) == llm(PROMPT, **GREEDY, echo=True)["choices"][0]["text"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_stop_text_ends_it(llm: Llama) -> None:
    text = llm(PROMPT, **GREEDY)["choices"][0]["text"]
    stop = text.split()[3]
    for stops in (stop, ["", stop][1:]):
        said = llm(PROMPT, **GREEDY, stop=stops, logprobs=1)["choices"][0]
        assert (said["text"], said["finish_reason"]) == (text.partition(stop)[0], "stop")
        assert "".join(said["logprobs"]["tokens"]).startswith(said["text"].rstrip())
        assert len(said["logprobs"]["tokens"]) < 12


def test_log_probabilities_are_of_the_tokens(llm: Llama) -> None:
    said = llm(PROMPT, **GREEDY, logprobs=2)["choices"][0]
    logprobs = said["logprobs"]
    assert "".join(logprobs["tokens"]) == said["text"]
    for token, p, top in zip(*[logprobs[k] for k in ("tokens", "token_logprobs", "top_logprobs")]):
        assert max(top, key=top.get) == token and top[token] == p < 0 and len(top) == 2


def test_offsets_of_tokens_count_from_the_prompt(llm: Llama) -> None:
    said = llm(PROMPT, **GREEDY, logprobs=1)["choices"][0]
    n, tokens = len(PROMPT), said["logprobs"]["tokens"]
    offsets = [n + sum(map(len, tokens[:i])) for i in range(len(tokens))]
    assert said["logprobs"]["text_offset"] == offsets
    of_ids = llm(llm.tokenize(PROMPT.encode()), **GREEDY, logprobs=1)["choices"][0]
    assert of_ids["logprobs"]["text_offset"] == offsets
    chunks = [one["choices"][0] for one in llm(PROMPT, **GREEDY, logprobs=1, stream=True)]
    assert [x for chunk in chunks for x in chunk["logprobs"]["text_offset"]] == offsets


def test_an_echo_has_the_log_probabilities_of_the_prompt(llm: Llama, model: kvarn.Model) -> None:
    plain = llm(PROMPT, **GREEDY, logprobs=1)["choices"][0]
    said = llm(PROMPT, **GREEDY, logprobs=1, echo=True)["choices"][0]
    form, ids = said["logprobs"], llm.tokenize(PROMPT.encode())
    rows = np.concatenate(list(model.context(256).read_all_logits(ids))).astype(float)
    at = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    told = ids[1:] if ids[0] == llm.token_bos() else ids
    expected = [None, *(at[i - 1, ids[i]] for i in range(len(ids) - len(told) + 1, len(ids)))]
    assert "".join(form["tokens"]) == said["text"] == PROMPT + plain["text"]
    assert form["text_offset"][len(told) :] == plain["logprobs"]["text_offset"]
    assert form["token_logprobs"][0] is None and form["top_logprobs"][0] is None
    assert form["token_logprobs"][1 : len(told)] == pytest.approx(expected[1:], abs=1e-4)
    assert form["token_logprobs"][len(told) :] == plain["logprobs"]["token_logprobs"]
    chunks = [
        one["choices"][0] for one in llm(PROMPT, **GREEDY, logprobs=1, echo=True, stream=True)
    ]
    for key, whole_list in form.items():
        assert [x for chunk in chunks for x in chunk["logprobs"][key]] == whole_list


def test_an_empty_prompt_and_a_size_that_is_none_are_named(llm: Llama) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm([])
    with pytest.raises(RequestError, match="n_ctx is 'x', expected a number of tokens"):
        Llama(str(default_model_path()), n_ctx="x")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="use a smaller n_ctx or a smaller type_k and type_v"):
        Llama(str(default_model_path()), n_ctx=10**9)


def test_a_seed_repeats_an_answer(llm: Llama) -> None:
    asked = {"max_tokens": 16, "temperature": 1.5, "top_k": 0}
    first, again, other = (
        llm(PROMPT, **asked, seed=seed)["choices"][0]["text"] for seed in (5, 5, 6)
    )
    assert first == again != other
    llm.set_seed(5)
    assert llm(PROMPT, **asked)["choices"][0]["text"] == first
    llm.set_seed(-1)


def test_a_chat_is_a_conversation_of_kvarn(llm: Llama, model: kvarn.Model) -> None:
    conversation = kvarn.Conversation(
        model.context(256), sampler=kvarn.Sampler(temp=0), max_tokens=12
    )
    text = "".join(conversation.ask(HELLO[0]["content"]))
    parts = [{"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"]}]}]
    for messages in (HELLO, parts):
        said = llm.create_chat_completion(messages, **GREEDY)
        assert said["choices"][0]["message"] == {"role": "assistant", "content": text}
    chunks = list(llm.create_chat_completion(HELLO, **GREEDY, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_a_tool_is_called(llm: Llama) -> None:
    pytest.importorskip("llguidance", reason="tools need llguidance")
    asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 300}
    choice = llm.create_chat_completion(HELLO, **asked, seed=1)["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"])["where"] in ("up", "down")
    named = {"type": "function", "function": {"name": "look"}}
    chunks = llm.create_chat_completion(
        HELLO, tools=[TOOL], tool_choice=named, stream=True, max_tokens=300, seed=1
    )
    parts = [c["choices"][0]["delta"].get("tool_calls", [{}])[0] for c in chunks]
    text = "".join(part.get("function", {}).get("arguments", "") for part in parts)
    assert json.loads(text)["where"] in ("up", "down")
    result = {"role": "tool", "tool_call_id": call["id"], "content": "a mast"}
    history = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    assert llm.create_chat_completion(history, tools=[TOOL], tool_choice="none", max_tokens=2)


def test_an_answer_has_the_form_that_is_asked_for(llm: Llama) -> None:
    pytest.importorskip("llguidance", reason="forms need llguidance")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema |= {"additionalProperties": False}
    for form in (
        {"type": "json_object", "schema": schema},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    ):
        said = llm.create_chat_completion(HELLO, response_format=form, max_tokens=60)
        assert json.loads(said["choices"][0]["message"]["content"])["ok"] in (True, False)
    grammar = LlamaGrammar.from_string('root ::= " aye" | " nay"')
    assert llm(PROMPT, grammar=grammar)["choices"][0]["text"] in (" aye", " nay")
    with pytest.raises(RequestError, match="exclude each other"):
        llm.create_chat_completion(
            HELLO, tools=[TOOL], tool_choice="required", response_format={"type": "json_object"}
        )


def test_a_state_brings_back_what_was_read(llm: Llama) -> None:
    llm.reset()
    ids = llm.tokenize(PROMPT.encode())
    llm.eval(ids)
    state = llm.save_state()
    expected = [token for token, _ in zip(llm.generate(ids, temp=0.0), range(9))]
    llm("Quite another text", max_tokens=4)
    assert llm.save_state() != state
    llm.load_state(state)
    assert llm.save_state() == state and llm.n_tokens == len(ids)
    assert [t for t, _ in zip(llm.generate(ids, temp=0.0), range(9))] == expected
    llm.reset()
    assert llm.n_tokens == 0


def test_tokens_are_the_tokenizers(llm: Llama, model: kvarn.Model) -> None:
    tokenizer = model.tokenizer
    for text in ("Two ships\n", "", "ü€"):
        for bos in (False, True):
            assert llm.tokenize(text.encode(), bos) == tokenizer.encode(text, bos=bos)
        assert llm.detokenize(llm.tokenize(text.encode(), add_bos=False)) == text.encode()
        assert llm.detokenize(llm.tokenize(text.encode())) == text.encode()
    ids = llm.tokenize(b"Two ships", add_bos=False)
    assert b"".join(llm.detokenize([i], ids[:n]) for n, i in enumerate(ids)) == b"Two ships"
    assert (llm.token_bos(), llm.token_eos()) == (tokenizer.bos_id, tokenizer.eos_id)
    assert (llm.n_vocab(), llm.n_ctx()) == (tokenizer.n_vocab, 1024)
    assert llm.detokenize([llm.token_nl()]) == b"\n"
    assert llm.context_params.n_ctx == 1024 and llm.n_embd() == model.config.n_embd
    assert llm.metadata["general.architecture"] == model.file.architecture


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"suffix": "x"}, "suffix is 'x'"),
        ({"tfs_z": 0.5}, r"tfs_z is 0\.5"),
        ({"logits_processor": [print]}, "logits_processor"),
        ({"colour": 1}, "no argument 'colour'"),
        ({"top_p": 3}, "top_p is 3, expected"),
        ({"grammar": "root"}, "grammar is 'root', expected a Constraint"),
    ],
)
def test_what_would_change_an_answer_is_refused(llm: Llama, asked: Any, words: str) -> None:
    for ask in (
        lambda: llm(PROMPT, **asked),
        lambda: llm.create_chat_completion(HELLO, **asked),
        lambda: next(llm.generate([5], **asked)),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            ask()
        assert isinstance(refused.value, kvarn.KvarnError)
        assert "\n" not in str(refused.value)


def test_a_prompt_that_does_not_fit_is_a_value_error(llm: Llama) -> None:
    with pytest.raises(ValueError, match=r"Requested tokens \(1024\) exceed .* 1024"):
        llm([5] * 1024)


def test_vectors_are_those_of_the_model(llm: Llama, model: kvarn.Model) -> None:
    texts = ["a ship", "the sea"]
    vectors = model.embed(texts).tolist()
    assert llm.embed(texts) == vectors and llm.embed(texts[1]) == pytest.approx(vectors[1])
    said = llm.create_embedding(texts)
    assert [one["embedding"] for one in said["data"]] == vectors
    assert said["usage"]["total_tokens"] == sum(len(llm.tokenize(t.encode())) for t in texts)
    with pytest.raises(RequestError, match="normalize is False"):
        llm.embed("a ship", normalize=False)


def test_forms_are_those_of_llama_cpp_python(llm: Llama) -> None:
    """Keys and types of what an installed llama-cpp-python answers."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = str(default_model_path())
    theirs = llama_cpp.Llama(path, n_ctx=256, verbose=False, logits_all=True)

    def form(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: form(one) for key, one in value.items() if key != "top_logprobs"}
        return type(value)

    for options in ({}, {"logprobs": 1}, {"stream": True}):
        said = [one(PROMPT, **GREEDY, **options) for one in (llm, theirs)]
        if "stream" in options:
            said = [next(iter(chunks)) for chunks in said]
        ours, other = (form(one["choices"][0]) for one in said)
        assert ours == other and said[0].keys() == said[1].keys()
    for options in ({}, {"stream": True}):
        said = [one.create_chat_completion(HELLO, **GREEDY, **options) for one in (llm, theirs)]
        if "stream" in options:
            said = [list(chunks)[1] for chunks in said]
        ours, other = (form(one["choices"][0]) for one in said)
        assert ours == other and said[0].keys() == said[1].keys()
    assert llm.tokenize(b"a ship") == theirs.tokenize(b"a ship")
