"""What `kvarn.compat.Llama` loads: models, adapters, drafts, text encoders, and what it refuses."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvarn.compat
from kvarn.compat import Llama, LlamaGrammar, LlamaPromptLookupDecoding, RequestError
from kvarn.runtime.loading.default_model import default_model_path

from ..models import tiny_models, tiny_text_encoders
from ..models.adapters import CASES, SEED, projections, random_pairs, write_adapter
from ..programs import printed
from .test_llama import HELLO, TOOL

PATH = str(default_model_path())


@pytest.mark.parametrize(
    "options",
    [{"lora_base": "x"}, {"rope_freq_base": 5e5}, {"chat_format": "llama-2"}, {"type_k": 99}],
)
def test_a_model_that_would_be_another_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(options))):
        Llama(PATH, verbose=False, **options)


def test_a_gpu_that_is_not_used_is_told() -> None:
    with pytest.warns(UserWarning, match="n_gpu_layers is -1"):
        Llama(PATH, n_ctx=32, n_gpu_layers=-1, verbose=False)


def test_types_of_keys_and_values_arrive() -> None:
    small = Llama(PATH, n_ctx=64, type_k=8, type_v=8, verbose=False)
    large = Llama(PATH, n_ctx=64, verbose=False)
    n_bytes = []
    for llm in (small, large):
        llm.eval(range(5, 60))
        n_bytes.append(llm._completions.context.n_bytes)
    assert n_bytes[0] < n_bytes[1]


def test_a_model_comes_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def pull(repo: str, **options: Any) -> Any:
        asked.append((repo, options))
        return SimpleNamespace(model=default_model_path())

    monkeypatch.setattr("kvarn.compat.llama.pull", pull)
    for name in ("*q8_0.gguf", None):
        made = Llama.from_pretrained("x/y", name, local_dir="z", n_ctx=32, verbose=False)
        assert made.n_ctx() == 32 and made.model_path == PATH
    to = Path("z")
    assert asked == [("x/y", {"file": "*q8_0.gguf", "to": to}), ("x/y", {"file": "", "to": to})]
    with pytest.raises(RequestError, match="cache_dir"):
        Llama.from_pretrained("x/y", "a.gguf", cache_dir="z")


def test_tools_need_no_package_where_nothing_has_to_be_called(tmp_path: Path) -> None:
    """Without msgspec and llguidance, calls are found; a choice that has to be kept is refused."""
    code = f"""
import sys
sys.modules["msgspec"] = sys.modules["llguidance"] = None
from kvarn.compat import RequestError, Llama
llm = Llama({PATH!r}, n_ctx=512, verbose=False)
asked = dict(tools={[TOOL]!r}, max_tokens=4)
assert llm.create_chat_completion({HELLO!r}, **asked)["choices"]
try:
    llm.create_chat_completion({HELLO!r}, **asked, tool_choice="required")
except RequestError as error:
    print(error)
"""
    run = printed(code)
    assert "llguidance" in run and "pip install" in run


def test_a_model_draws_the_same_with_a_draft() -> None:
    """So a draft is taken, and that of another library refused by name."""
    asked: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0}
    draft = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=6)
    drafting = Llama(PATH, n_ctx=256, draft_model=draft, verbose=False)
    llm = Llama(PATH, n_ctx=256, verbose=False)
    prompt = "The ship sank. The ship sank. The ship"
    assert drafting(prompt, **asked)["choices"] == llm(prompt, **asked)["choices"]
    assert drafting._completions.context.stats.as_dict()["drafted_tokens"] > 0
    with pytest.raises(RequestError, match="draft_model is <function"):
        Llama(PATH, draft_model=lambda ids: ids, verbose=False)
    with pytest.raises(RequestError, match="max_tokens"):
        LlamaPromptLookupDecoding(num_pred_tokens=0)


def test_submodules_that_programs_import_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", kvarn.compat)
    for name in ("llama_speculative", "llama_grammar"):
        monkeypatch.delitem(sys.modules, f"llama_cpp.{name}", raising=False)
        monkeypatch.delattr(kvarn.compat, name, raising=False)
    speculative = importlib.import_module("llama_cpp.llama_speculative")
    assert speculative.LlamaPromptLookupDecoding is LlamaPromptLookupDecoding
    assert importlib.import_module("llama_cpp.llama_grammar").LlamaGrammar is LlamaGrammar


def test_an_adapter_is_added(tmp_path: Path) -> None:
    """As `kvarn.load` adds it."""
    case = CASES["llama-mha"]
    model_path = tmp_path / "model.gguf"
    tiny_models.write(model_path, case, SEED)
    pairs = random_pairs(projections(case), 5)
    path = write_adapter(tmp_path / "lora.gguf", case.architecture, pairs, alpha=4.0)
    options: dict[str, Any] = {"n_ctx": 64, "verbose": False}
    adapted = Llama(str(model_path), lora_path=str(path), lora_scale=2.0, **options)
    plain = Llama(str(model_path), **options)
    loaded = [kvarn.load(model_path, lora=f"{path}:2"), kvarn.load(model_path)]
    for llm, model in zip((adapted, plain), loaded):
        llm.eval(range(5, 20))
        assert (
            llm._completions.context.logits == model.context(64).prefill(list(range(5, 20)))
        ).all()
    assert (plain._completions.context.logits != adapted._completions.context.logits).any()
    with pytest.raises(kvarn.KvarnError, match="no such file or folder"):
        Llama(str(model_path), lora_path=str(tmp_path / "none.gguf"), verbose=False)


def test_a_text_encoder_makes_vectors_and_no_text(tmp_path: Path) -> None:
    """Those of `kvarn.load_embedder`."""
    path = tiny_text_encoders.write(tmp_path / "bert.gguf", tiny_text_encoders.TinyEncoder())
    llm, embedder = Llama(str(path), embedding=True, verbose=False), kvarn.load_embedder(path)
    texts = ["a ship", "the sea"]
    assert llm.embed(texts) == embedder.embed(texts).tolist()
    said = llm.create_embedding("a ship")
    assert said["data"][0]["embedding"] == pytest.approx(embedder.embed("a ship")[0].tolist())
    assert (llm.n_embd(), llm.n_ctx()) == (embedder.n_embd, embedder.n_ctx)
    assert llm.metadata["general.architecture"] == "bert"
    for ask in (lambda: llm("a"), lambda: llm.create_chat_completion(HELLO), lambda: llm.eval([5])):
        with pytest.raises(RequestError, match="is a text encoder: it makes vectors, and no text"):
            ask()
    llm.close()
    with pytest.raises(RequestError, match="text encoders take none"):
        Llama(str(path), lora_path="x", verbose=False)
