"""Ids, roles and ends of generation as llama.cpp has them, for vocabularies of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.runtime.tokenizer import Tokenizer
from kvarn.runtime.tokenizer.pretokenizers import PRE_TOKENIZERS

VARIANTS = (
    *["bpe", "bpe-surrounded", "bpe-jina", "bpe-modern", "gemma4", "whitespace"],
    *["whitespace-lower", "spm", "spm-bare", "spm-surrounded", "spm-phi3"],
    *["bert", "bert-cased", "bert-accents"],
    *["ugm", "ugm-joined", "ugm-spaces", "ugm-joined-bare"],
)
_FIRST_PRE_TEXT = 2


@pytest.fixture(params=VARIANTS)
def case(request: pytest.FixtureRequest, golden: dict[str, Any]) -> dict[str, Any]:
    variant: dict[str, Any] = golden["variants"][request.param]
    return variant


def tokenizer_of(golden: dict[str, Any], case: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(golden["vocabularies"][case["vocabulary"]] | case["changes"])


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def test_all_variants_are_tested(golden: dict[str, Any]) -> None:
    assert sorted(golden["variants"]) == sorted(VARIANTS)


def test_ids(golden: dict[str, Any], case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(golden, case)
    for index, bos, special, ids in case["runs"]:
        text = raw(golden["texts"][index])
        assert tokenizer.encode(text, bos=bos, special=special) == ids, text


def test_str_and_bytes_give_the_same_ids(golden: dict[str, Any], case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(golden, case)
    for text in golden["texts"]:  # those with surrogate escapes too: bytes as the system gives them
        assert tokenizer.encode(text) == tokenizer.encode(raw(text))


def test_roles_and_ends(golden: dict[str, Any], case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(golden, case)
    assert sorted(tokenizer.eog_ids) == case["eog_ids"]
    assert {role: tokenizer.roles[role] for role in case["roles"]} == case["roles"]
    assert set(tokenizer.roles) - set(case["roles"]) <= {"unk", "eom"}  # llama.cpp does not tell
    assert (tokenizer.add_bos, tokenizer.add_eos) == (case["add_bos"], case["add_eos"])


def test_every_pre_tokenizer(golden: dict[str, Any]) -> None:
    names = []
    for group in golden["pre"]:
        names += group["names"]
        vocabulary = golden["vocabularies"][group["vocabulary"]]
        for name in group["names"]:
            tokenizer = Tokenizer.from_metadata(vocabulary | {"tokenizer.ggml.pre": name})
            for text, ids in zip(golden["texts"][_FIRST_PRE_TEXT:], group["ids"]):
                assert tokenizer.encode(raw(text), bos=True) == ids, (name, text)
    assert sorted([*names, "whitespace"]) == sorted(PRE_TOKENIZERS)
    assert len(golden["pre"]) > 30  # the texts tell families apart
