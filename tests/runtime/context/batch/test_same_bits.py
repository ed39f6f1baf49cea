"""A context's tokens and logits do not depend on the contexts that decode in the same pass.

The oracle is a context that decodes alone.
"""

from functools import partial
from itertools import count
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.model import Model

from ....models import tiny_cases, tiny_models, tiny_quants
from . import together

BUDGET = {"budget": 40, "sink": 4, "window": 16}
ATTEND = {
    "full": None,
    "topk": kvarn.TopK(**BUDGET),
    "means": kvarn.TopK(**BUDGET, tail="means"),
    "hash": kvarn.Hash(**BUDGET),
    "magicpig": kvarn.MagicPig(dense_layers="none", sink=4, window=16),
    "auto": kvarn.Auto(full_up_to=256),
}
KEEP = {
    "streaming": kvarn.Streaming(200),
    "hashevict": kvarn.HashEvict(200),
    "h2o": kvarn.H2O(200),
    "nacl": kvarn.NaCl(200, every=4),
}


def tiny_case(name: str, folder: Path) -> Model:
    tiny_models.write(folder / "m.gguf", next(c for c in tiny_cases.CASES if c.name == name), 1)
    return kvarn.load(folder / "m.gguf")


def check_lengths(model: Model, n_rows: int, steps: int = 4) -> None:
    """Contexts of `n_rows` lengths, some of which cross a tile of K and V."""
    prompts = [together.prompt(model, i, 3 + 9 * i) for i in range(n_rows)]
    together.check(model, [partial(model.context, 128)] * n_rows, prompts, steps)


@pytest.mark.parametrize("name", [case.name for case in tiny_cases.CASES])
def test_architectures(name: str, tmp_path: Path) -> None:
    check_lengths(tiny_case(name, tmp_path), 5, steps=3)


@pytest.mark.parametrize("kind", tiny_quants.KINDS)
def test_types_of_weights(kind: str, tmp_path: Path) -> None:
    tiny_quants.write(tmp_path / "m.gguf", kind)
    check_lengths(kvarn.load(tmp_path / "m.gguf"), 6, steps=3)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5, 7, 8, 9, 13])
def test_numbers_of_rows(n_rows: int) -> None:
    check_lengths(kvarn.load(), n_rows)


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_methods_of_every_kind_in_one_pass(kv: str) -> None:
    """Each over prompts of two lengths, one of which ends a segment while it decodes."""
    model, store = kvarn.load(), kvarn.Ram(kv, kv)
    makes = [partial(model.context, 2100, attend, store=store) for attend in ATTEND.values()]
    makes += [partial(model.context, 900, keep=keep, store=store) for keep in KEEP.values()]
    for sizes in ((1020, 400), (300, 1022)):
        prompts = [together.prompt(model, i, sizes[i % 2]) for i in range(len(makes))]
        together.check(model, makes, prompts)


@pytest.mark.parametrize(
    "name", ["llama-mha", "gemma4-shared", "deepseek2", "qwen35", "lfm2", "falcon-h1"]
)
def test_drafts_of_several_contexts(name: str, tmp_path: Path) -> None:
    """Right and wrong ones in the pass of contexts without any; the oracle has none at all. With
    states, a token that was rejected has changed them."""
    model = tiny_case(name, tmp_path)
    prompts = [together.prompt(model, i, 3 + 9 * i) for i in range(5)]
    together.check(model, [partial(model.context, 128)] * 5, prompts, 12, drafting=True)


def test_drafts_of_methods_of_every_kind() -> None:
    """Each over prompts of two lengths, one of which ends a segment within a draft."""
    model = kvarn.load()
    makes = [partial(model.context, 2100, attend) for attend in ATTEND.values()]
    makes += [partial(model.context, 900, keep=keep) for keep in KEEP.values()]
    for sizes in ((1020, 400), (300, 1022)):
        prompts = [together.prompt(model, i, sizes[i % 2]) for i in range(len(makes))]
        together.check(model, makes, prompts, 10, drafting=True)


def test_methods_of_layers_that_share_keys_and_values(tmp_path: Path) -> None:
    model = tiny_case("gemma4-shared", tmp_path)
    makes = [partial(model.context, 1200, attend) for attend in ATTEND.values()]
    prompts = [together.prompt(model, i, 1020 + i) for i in range(len(makes))]
    together.check(model, makes, prompts)


def test_packs(tmp_path: Path) -> None:
    """Contexts that write packs, that read the same one, and in memory."""
    model = kvarn.load()
    with model.context(1200, store=kvarn.Disk(tmp_path / "parent")) as parent:
        parent.prefill(together.prompt(model, 9, 1030))
    numbers = count()

    def writer() -> kvarn.Context:
        return model.context(1200, store=kvarn.Disk(tmp_path / f"{next(numbers)}"))

    def child() -> kvarn.Context:
        store = kvarn.Disk(tmp_path / f"{next(numbers)}", parent=tmp_path / "parent")
        return model.context(1200, ATTEND["topk"], store=store)

    makes = [writer, child, child, partial(model.context, 1200)]
    prompts = [together.prompt(model, i, 20 + 500 * (i == 0)) for i in range(4)]
    contexts = together.check(model, makes, prompts)
    tokens = [list(context.tokens) for context in contexts]
    for context in contexts:
        context.close()
    for number, saved in enumerate(tokens[:3]):  # 0 to 2 are those that decoded alone
        with model.context(1200, store=kvarn.Disk(tmp_path / f"{3 + number}")) as again:
            assert again.tokens == saved


def test_long_and_short_rotations(tmp_path: Path) -> None:
    """LongRoPE has one set of factors for contexts beyond the original length, and another."""
    model = tiny_case("llama-longrope", tmp_path)
    original = model.config.n_ctx_orig
    assert model.config.n_ctx_train > original
    makes = [partial(model.context, n) for n in (original, 2 * original, original, 2 * original)]
    prompts = [together.prompt(model, 1, original // 2)] * 4
    contexts = together.check(model, makes, prompts)
    assert (contexts[0].logits != contexts[1].logits).any()


@pytest.mark.data
@pytest.mark.parametrize("file", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_real_models(file: str) -> None:
    path = Path.home() / ".cache" / "kvarn-real" / file
    if not path.exists():
        pytest.skip(f"{path} is not there: shared/data/real_models.py fetches it")
    model = kvarn.load(path)
    makes = [partial(model.context, 2048, attend) for attend in ATTEND.values()]
    makes += [partial(model.context, 2048)] * 2
    for n_rows in (3, 8):
        prompts = [together.prompt(model, i, 40 + 90 * i) for i in range(n_rows)]
        together.check(model, makes[:n_rows], prompts)
