"""Constrained sampling over several kinds of vocabularies: what is sampled matches."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.runtime.draft import Ngram
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.model import Model
from kvarn.runtime.sampling import Constraint, Sampler, SamplingError
from kvarn.runtime.tokenizer import Tokenizer, load_tokenizer

OPEN = Sampler(temp=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "mail": {"anyOf": [{"type": "null"}, {"const": "@"}]},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
MINI = default_model_path()
CONTROL = "<|reserved_special_token_7|>"  # of Llama 3


@pytest.fixture(scope="module", params=["mini", "llama-spm", "llama-bpe", "phi-3", "qwen2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "mini":
        return load_tokenizer(MINI)
    folder: Path = request.getfixturevalue("data_dir")
    return load_tokenizer(folder / "vocab" / f"ggml-vocab-{request.param}.gguf")


def answers(
    tokenizer: Tokenizer,
    constraint: Constraint,
    n: int = 400,
    sampler: Sampler = OPEN,
    wanted: Sequence[int] = (),
) -> tuple[str, bool]:
    """The text that random logits give, and whether it came to an end of itself. wanted: the ids
    that logits ask for first."""
    random = np.random.default_rng(1)
    state = replace(sampler, constraint=constraint).start(tokenizer)
    ids: list[int] = []
    for i in range(n):
        logits = random.normal(size=tokenizer.n_vocab + 3).astype(np.float32)
        if i < len(wanted):
            logits[wanted[i]] = 1000
        token = state.sample(logits)
        if token in tokenizer.eog_ids:
            return tokenizer.decode(ids, special=True).removeprefix(" "), True
        state.accept(token)
        ids.append(token)
        if state.is_complete:
            return tokenizer.decode(ids, special=True).removeprefix(" "), True
    return tokenizer.decode(ids, special=True).removeprefix(" "), False


def fits(value: Any) -> bool:
    """Whether a value is one of `SCHEMA`."""
    return (
        set(value) - {"mail"} == {"name", "age", "tags"}
        and len(value["name"]) <= 12
        and type(value["age"]) is int
        and 0 <= value["age"] <= 150
        and len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "b"}
        and value.get("mail") in (None, "@")
    )


@pytest.mark.data
@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_an_answer_is_a_value_of_the_schema(tokenizer: Tokenizer, temp: float) -> None:
    for seed in range(3):
        sampler = replace(OPEN, temp=temp, seed=seed)
        text, ended = answers(
            tokenizer, Constraint("json_schema", json.dumps(SCHEMA)), 600, sampler
        )
        assert ended and fits(json.loads(text)), text


@pytest.mark.data
def test_a_regular_expression_and_grammars(tokenizer: Tokenizer) -> None:
    text, ended = answers(tokenizer, Constraint("regex", r"[a-f]{3}-[0-9]{2,4}"))
    assert ended and re.fullmatch(r"[a-f]{3}-[0-9]{2,4}", text)
    grammar = (
        'root ::= "a\\u00e9\\x41\\"" item{2,3} [\\u0041-\\u005A]\nitem ::= "x" | "y" |\n  "z"\n'
    )
    text, ended = answers(tokenizer, Constraint("gbnf", grammar))
    assert ended and re.fullmatch('aéA"[xyz]{2,3}[A-Z]', text)
    text, ended = answers(tokenizer, Constraint("lark", 'start: "<" WORD ">"\nWORD: /[a-z]{1,5}/'))
    assert ended and re.fullmatch("<[a-z]{1,5}>", text)


@pytest.mark.data
def test_a_trigger_begins_the_constraint(tokenizer: Tokenizer) -> None:
    schema = '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}'
    schema = schema[:-1] + ', "additionalProperties": false}'
    constraint = Constraint("json_schema", schema, ("<call>", "[call]"))
    for trigger in constraint.trigger:
        wanted = tokenizer.encode(f"so {trigger}")
        text, _ = answers(tokenizer, constraint, 80, OPEN, wanted)
        assert text.startswith(f"so {trigger}")
        assert re.match(r'\{\s*"a"\s*:\s*1\s*\}', text[len(f"so {trigger}") :]), text


@pytest.mark.data
@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", '{"const": 1}', trigger=("aab", "<é>")),
        Constraint("regex", "(yes|no)", after="</b>"),
    ],
    ids=["trigger", "after"],
)
def test_masks_that_are_kept_are_those_of_llguidance(
    tokenizer: Tokenizer, constraint: Constraint
) -> None:
    """After any text: parts of triggers, characters that tokens cut, control tokens."""
    from kvarn.runtime.sampling.constraints.matcher import Matcher, _compiled
    from kvarn.runtime.sampling.constraints.vocabulary import control_tokens

    random = np.random.default_rng(3)
    controls = list(control_tokens(tokenizer).values())[:3]
    texts = ["a", "aa", "b", "<", "<é", "é", "\U0001d11e", "</", "</b", " ", "x", "yes", "1"]
    pieces = [id for text in texts for id in tokenizer.encode(text)] + controls
    logits, n_kept = np.zeros(tokenizer.n_vocab, np.float32), 0
    for _ in range(3):
        matcher, plain = Matcher(constraint, tokenizer), _compiled(constraint, tokenizer)[0]
        plain = plain.deep_copy()
        for _ in range(20):
            allowed = matcher.allowed(logits).ids
            bits = np.frombuffer(plain.compute_bitmask(), np.uint8)
            expected = np.flatnonzero(np.unpackbits(bits, bitorder="little")[: logits.size])
            np.testing.assert_array_equal(allowed, expected)
            n_kept += matcher._trigger.key in matcher._masks
            choices = np.intersect1d(pieces, expected)
            token = int(random.choice(choices if choices.size else expected))
            if token in tokenizer.eog_ids:
                break
            matcher.accept(token)
            assert plain.consume_token(token)
            if matcher.is_complete:
                break
    assert n_kept > 10 and len(matcher._masks) < n_kept


def test_a_trigger_may_be_a_control_token(data_dir: Path) -> None:
    tokenizer = load_tokenizer(data_dir / "vocab" / "ggml-vocab-llama-bpe.gguf")
    start, header = tokenizer.id_of(CONTROL), tokenizer.id_of("<|start_header_id|>")
    assert start is not None and header is not None
    constraint = Constraint("regex", "[0-9]{3};", (CONTROL,))
    wanted = [*tokenizer.encode("one"), header, *tokenizer.encode("two"), start]
    text, _ = answers(tokenizer, constraint, 30, OPEN, wanted)
    assert re.match(r"one<\|start_header_id\|>two<\|reserved_special_token_7\|>[0-9]{3};", text)
    # Without a trigger, no control token stands in a text.
    assert "<|" not in answers(tokenizer, Constraint("regex", "(.|\n){40,80}"), 80)[0]


@pytest.mark.data
def test_directives_of_lark_stand_for_texts_and_tokens(data_dir: Path) -> None:
    directives = f'think: %until "</t>"\ncall: %mark "{CONTROL}"'
    constraint = Constraint("lark", f"start: think call NUMBER\n{directives}\nNUMBER: /[0-9]{{2}}/")
    for name, special in (("llama-bpe", True), ("llama-spm", False)):
        tokenizer = load_tokenizer(data_dir / "vocab" / f"ggml-vocab-{name}.gguf")
        text, ended = answers(tokenizer, constraint, 60, OPEN, tokenizer.encode("hm</t>"))
        assert ended and re.fullmatch(r"hm</t><\|reserved_special_token_7\|>[0-9]{2}", text)
        assert (tokenizer.id_of(CONTROL) is not None) == special


REFUSED = {
    "schema, no JSON": (("json_schema", "{"), "not JSON"),
    "schema, a list": (("json_schema", "[]"), "list"),
    "schema, keyword": (("json_schema", '{"not": {"type": "null"}}'), "not"),
    "schema, type": (("json_schema", '{"type": "strin"}'), "strin"),
    "schema, elsewhere": (("json_schema", '{"$ref": "http://x.y/z"}'), "http://x.y/z"),
    "regex": (("regex", "a(b"), "sampling: the regex cannot be used: unclosed group"),
    "regex of a schema": (
        ("json_schema", '{"type": "string", "pattern": "["}'),
        "sampling: the JSON schema cannot be used: regex '[': unclosed character class",
    ),
    "regex, look-around": (("regex", "(?=a)b"), "look-around"),
    "lark": (("lark", "start: nothing"), "nothing"),
    "regex of a grammar": (
        ("lark", "start: A\nA: /a(b/"),
        "sampling: the Lark grammar cannot be used: regex 'a(b': unclosed group",
    ),
    "gbnf, no root": (("gbnf", 'a ::= "b"'), "root"),
    "gbnf, no grammar": (("gbnf", 'root := "a"'), "::="),
    "gbnf, no rule": (("gbnf", "root ::= nothing"), "nothing"),
    "kind": (("yaml", ""), "yaml"),
    "value": (("regex", 5), "5"),
    "half a character": (("regex", "a\ud800"), "surrogate"),
    "half a trigger": (("regex", "a", ("\ud800",)), "surrogate"),
    "trigger and after": (("regex", "a", ("b",), "c"), "after"),
    "trigger": (("regex", "a", ("",)), "trigger"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(name: str) -> None:
    arguments, words = REFUSED[name]
    with pytest.raises(SamplingError) as caught:
        Constraint(*arguments)  # type: ignore[arg-type]
    message = str(caught.value)
    assert words in message and "\n" not in message and len(message) < 400
    assert message == words or not words.startswith("sampling: ")


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint("gbnf", "root ::= root"), "GBNF grammar cannot be used: no text matches it"),
        (Constraint("regex", "a{1000000}"), "regex cannot be used: lexer error: too many "),
    ],
)
def test_what_cannot_be_begun_is_refused_without_the_parsers_state(
    constraint: Constraint, words: str
) -> None:
    tokenizer = load_tokenizer(MINI)
    with pytest.raises(SamplingError, match=words) as caught:
        answers(tokenizer, constraint, 4)
    assert "state" not in str(caught.value)


def test_a_constraint_needs_a_tokenizer() -> None:
    with pytest.raises(SamplingError, match="tokenizer"):
        Sampler(constraint=Constraint("json_object")).start()
    with pytest.raises(SamplingError, match="constraint"):
        Sampler(constraint="json_object")  # type: ignore[arg-type]


def test_all_forbidden_is_an_error() -> None:
    tokenizer = load_tokenizer(MINI)
    bias = dict.fromkeys(range(tokenizer.n_vocab), float("-inf")) | {5: 0.0}
    state = Sampler(constraint=Constraint("json_object"), logit_bias=bias).start(tokenizer)
    with pytest.raises(SamplingError, match="forbidden"):
        state.sample(np.zeros(tokenizer.n_vocab, np.float32))


def test_log_probabilities_are_of_the_model() -> None:
    tokenizer = load_tokenizer(MINI)
    logits = np.random.default_rng(0).normal(size=tokenizer.n_vocab).astype(np.float32)
    states = [OPEN.start(), replace(OPEN, constraint=Constraint("json_object")).start(tokenizer)]
    token = states[1].sample(logits)
    assert tokenizer.piece(token).lstrip().startswith(b"{")
    assert states[0].logprobs(logits, token, 3) == states[1].logprobs(logits, token, 3)


@pytest.fixture(scope="module")
def mini() -> Model:
    return kvarn.load(MINI)


def text_of(model: Model, sampler: Sampler, draft: Ngram | None = None) -> tuple[str, str | None]:
    context = model.context(512)
    generation = context.generation("The mill stood by the", 400, sampler, draft=draft)
    return "".join(generation.pieces()), generation.finish


@pytest.mark.parametrize("seed", range(3))
def test_a_model_ends_where_the_grammar_does(mini: Model, seed: int) -> None:
    sampler = Sampler(temp=1.0, seed=seed, constraint=Constraint("json_schema", json.dumps(SCHEMA)))
    text, finish = text_of(mini, sampler)
    assert finish == "eos" and fits(json.loads(text))


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_drafts_change_no_constrained_answer(tiny: Model, temp: float) -> None:
    # Repetitions, which drafts guess; a wrong guess goes on outside the grammar.
    grammar = Constraint("regex", r'(\{"item": "[a-z]{1,2}"\}\n){12}')
    sampler = Sampler(temp=temp, seed=2, constraint=grammar)
    text, finish = text_of(tiny, sampler)
    assert finish == "eos" and re.fullmatch(grammar.value, text)
    assert text_of(tiny, sampler, Ngram()) == (text, finish)


def test_white_space_is_bounded() -> None:
    tokenizer = load_tokenizer(MINI)

    def blank(token: int) -> bool:
        piece = tokenizer.piece(token)
        return bool(piece) and not piece.strip()

    assert any(map(blank, range(tokenizer.n_vocab)))
    state = replace(OPEN, constraint=Constraint("json_object")).start(tokenizer)
    bias = np.array([10.0 if blank(i) else 0.0 for i in range(tokenizer.n_vocab)], np.float32)
    state.accept(tokenizer.encode("{")[-1])
    text = ""
    for _ in range(60):
        token = state.sample(bias)
        if not blank(token):
            break
        state.accept(token)
        text += tokenizer.piece(token).decode()
    assert re.fullmatch(r"( |\n{1,2}[ \t]{0,20})?", text)
