"""Vocabularies of Hugging Face folders that are refused, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.table import HF_ARCHITECTURES
from kvarn.convert.hf.vocabulary import read_vocabulary
from kvarn.runtime.tokenizer.pretokenizers import PRE_TOKENIZERS
from kvarn.system.text import MESSAGE

from . import vocabularies
from .vocabularies import small_json


def refusal(folder: Path, **arguments: Any) -> str:
    with pytest.raises(ConvertError) as refused:
        read_vocabulary(
            folder, HF_ARCHITECTURES["LlamaForCausalLM"], **{"n_vocab": None, **arguments}
        )
    return str(refused.value)


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    assert "no tokenizer at all" in refusal(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    assert "tekken.json" in refusal(tmp_path)
    path = tmp_path / "tokenizer.json"
    odd = {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(small_json() | {"pre_tokenizer": odd}))
    assert "the pre-tokenizer is unknown" in refusal(tmp_path)
    told = refusal(tmp_path, pre="dance")
    assert "no pre-tokenizer of this name" in told
    assert all(name in told for name in PRE_TOKENIZERS) and len(told) < MESSAGE
    assert "beyond the 50" in refusal(tmp_path, pre="gpt-2", n_vocab=50)
    path.write_text(json.dumps(small_json(type="Unigram")))
    assert "'Unigram', expected BPE" in refusal(tmp_path)
    path.write_text(json.dumps(small_json(merges=[1])))
    assert "tokenizer.json" in refusal(tmp_path, pre="gpt-2")
    path.write_text(json.dumps(small_json(merges=[])))
    assert "no merges, and nothing else makes its token 'ab'" in refusal(tmp_path, pre="gpt-2")
    path.write_text("[]")
    assert "expected a JSON object" in refusal(tmp_path)
    vocabularies.save_sentencepiece(tmp_path, model_type=1)
    path.unlink()
    assert "unigram vocabulary" in refusal(tmp_path)
    vocabularies.save_sentencepiece(tmp_path)
    assert "--pre has no effect" in refusal(tmp_path, pre="gpt-2")
    model = (tmp_path / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(model[:-3])
    assert "damaged" in refusal(tmp_path)


def test_tokens_whose_ids_disagree_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(small_json()))
    vocabularies.save_settings(
        tmp_path, added_tokens_decoder={"7": {"content": "<|end|>", "special": True}}
    )
    assert "'<|end|>' the id 7, the tokenizer 91" in refusal(tmp_path, pre="gpt-2")
