"""Whole models with K and V in torch's memory, beside the same models on the CPU.

Their weights are computed by the CPU (`mixed`), so that what differs is what is done with K and V.
Single tokens are recorded launches, made again for each token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kvarn
from kvarn.cuda_ops.linear.linear import MAX_TOKENS
from kvarn.cuda_ops.machine import Card
from kvarn.jit.arena import Arena
from kvarn.runtime.context.batch import Batch
from kvarn.runtime.loading.devices import check_room
from kvarn.runtime.model import Model
from kvarn.system.errors import KvarnError

from ..models import tiny_cases, tiny_models
from ..models.tiny import dense, gemma
from ..models.tiny.case import SWA, Tiny
from .mixed import MixedDevice, forced, greedy

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the device's memory is the host's, where Triton interprets"
)

SMALL: dict[str, Any] = {
    "n_layers": 2, "n_embd": 32, "n_heads": 2, "n_kv_heads": 1, "head_dim": 16, "n_ff": 32,
    "n_vocab": 61,
}  # fmt: skip
SHAPES = {case.name: case for case in tiny_cases.CASES}
DEFAULT = Tiny("resident", "llama", **SMALL)
CAPPED = Tiny("capped", "gemma2", **SMALL, tied=True, keys={SWA: 16})
CARD, CHUNK = Card("large", (8, 9), 1 << 40, 1 << 40), 512
SEED = 5
N_IDS = 16
SPARSE = {"budget": 4, "sink": 2, "window": 4}
METHODS: dict[str, Any] = {
    "full": kvarn.Full(),
    "hash": kvarn.Hash(**SPARSE),
    "topk": kvarn.TopK(**SPARSE),
}
DEEP = {"full": 0, "hash": 0, "topk": 1022}
"""Tokens that a context is filled to: sketches are made from 1,024 on."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """case → its model on the CPU, and on a device of torch that has K and V."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def load(case: Tiny) -> tuple[Model, Model]:
        if case.name not in made:
            path = Path(folder, f"{case.name}.gguf")
            tiny_models.write(path, case, SEED)
            here = kvarn.load(path)
            check_room(here.file, CARD, CHUNK)
            made[case.name] = here, Model(here.file, Arena(1 << 20), None, MixedDevice(), "gpu")
        return made[case.name]

    return load


def is_served(case: Tiny) -> bool:
    """Whether GPUs have kernels for all layers of a model."""
    return (
        case in (*dense.CASES, *gemma.CASES)
        and not case.architecture.startswith("gemma4")  # its layers' keys differ in size
    )


def launches_of(model: Model) -> list[Any]:
    """Recorded passes: those that begin with rows of the embedding. Logits are recorded apart."""
    device = model.transformer.device
    assert isinstance(device, MixedDevice)
    return [one for one in device.recorded if "rows" in one.names]


def context_of(model: Model, kv: str, method: str, prompt: list[int]) -> kvarn.Context:
    """A context that has read all of a prompt but its last token, a few tokens at a time: they are
    read in float32."""
    n_ctx = 64 + DEEP[method]
    context = model.context(n_ctx, attend=METHODS[method], store=kvarn.Ram(kv, kv))
    for first in range(0, len(prompt) - 1, MAX_TOKENS):
        context.prefill(prompt[first : len(prompt) - 1][:MAX_TOKENS])
    if DEEP[method]:
        context.fill(DEEP[method])
    return context


def compare(models: Any, case: Tiny, kv: str, method: str, n: int = N_IDS) -> None:
    """16 greedy ids are the CPU's. Where K and V are rounded to few bits, a rounding that falls the
    other way moves a logit by as much as the type's noise, which f16 on the CPU has not: there the
    logits are within twice that, with the same tokens."""
    prompt = tiny_models.prompt(case, SEED)[:MAX_TOKENS]
    here, there = models(case)
    last = prompt[-1:]
    ids, want = greedy(context_of(here, kv, method, prompt), last, n)
    if kv == "f16":
        assert greedy(context_of(there, kv, method, prompt), last, n)[0] == ids
        return
    noise = np.abs(want - forced(context_of(here, "f16", method, prompt), last, ids)).max()
    error = np.abs(want - forced(context_of(there, kv, method, prompt), last, ids)).max()
    assert error <= 2 * noise


@pytest.mark.parametrize(
    ("kv", "method"), [("f16", "full"), ("q8_0", "hash"), ("q4_0", "full"), ("f16", "topk")]
)
def test_greedy_ids_are_the_cpus(models, kv: str, method: str) -> None:
    # Of topk: all before the first centre, the token that makes it, and two that follow.
    compare(models, DEFAULT, kv, method, 4 if method == "topk" else N_IDS)


SERVED = [name for name, case in SHAPES.items() if is_served(case)]
FIRST = list({SHAPES[name].architecture: name for name in reversed(SERVED)}.values())
"""One shape of each architecture."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("method", METHODS)
def test_every_architecture(models, name: str, kv: str, method: str) -> None:
    compare(models, SHAPES[name], kv, method)


@pytest.mark.parametrize("name", [name for name, case in SHAPES.items() if not is_served(case)])
def test_what_is_not_served_is_refused_by_name(models, name: str) -> None:
    named = "experts|recurrent layers|latent attention|layers differ in their keys"
    with pytest.raises(KvarnError, match=rf"({named}).* --device cpu$"):
        models(SHAPES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SERVED if name not in FIRST])
def test_every_shape(models, name: str) -> None:
    compare(models, SHAPES[name], "f16", "full")


@pytest.mark.parametrize("case", [DEFAULT, CAPPED], ids=["plain", "window and cap"])
def test_prompts_are_read_in_chunks(models, case: Tiny) -> None:
    """As f16: logits are off by less than 1% of their spread."""
    prompt = tiny_models.prompt(case, SEED)[:40]
    here, there = (model.context(64).prefill(prompt) for model in models(case))
    assert np.abs(there - here).max() < 0.01 * here.std()


@pytest.mark.parametrize(("method", "most"), [("full", 12), ("hash", 18), ("topk", 18)])
def test_launches_of_a_layer(models, method: str, most: int) -> None:
    """Two models that differ by a layer, so that what is around the layers does not count."""
    counts = []
    for n_layers in (1, 2):
        case = Tiny(f"layers-{n_layers}", "llama", **{**SMALL, "n_layers": n_layers})
        _, model = models(case)
        with context_of(model, "f16", method, tiny_models.prompt(case, SEED)[:12]) as context:
            for token in range(4 if DEEP[method] else 1):
                context.decode(token)
        counts.append(len(launches_of(model)[-1].names))
    assert 8 < counts[1] - counts[0] <= most


def test_one_recording_serves_all_tokens(models) -> None:
    _, model = models(DEFAULT)
    before = len(launches_of(model))
    prompt = tiny_models.prompt(DEFAULT, SEED)[:6]
    with context_of(model, "f16", "hash", prompt) as context:
        for token in range(9):  # up to ten tokens all are read
            context.decode(token)
    assert len(launches_of(model)) == before + 2


def test_what_is_read_is_counted_as_on_the_cpu(models) -> None:
    prompt, found = tiny_models.prompt(DEFAULT, SEED)[:8], []
    for model in models(DEFAULT):
        with context_of(model, "f16", "hash", prompt) as context:
            for token in (1, 2, 3, 4):
                context.decode(token)
        found.append([one.as_dict() for one in context.stats.layers])
        for one in found[-1]:
            del one["index_seconds"], one["attention_seconds"]
    assert found[0] == found[1] and found[0][0]["steps"] == 1


@pytest.mark.parametrize("method", ["full", "hash"])
def test_drafts_give_what_single_tokens_give(models, method: str) -> None:
    """And recorded launches are used again after them."""
    _, model = models(DEFAULT)
    prompt = tiny_models.prompt(DEFAULT, SEED)[:12]
    single, drafted = (context_of(model, "f16", method, prompt) for _ in range(2))
    want = [single.decode(token).copy() for token in (3, 1, 4, 1)]
    before = len(launches_of(model))
    drafted.decode(3)
    recorded = len(launches_of(model))
    got = [drafted.decode(1, [4, 9]).copy(), drafted.decode(4).copy(), drafted.decode(1).copy()]
    for a, b in zip(got, want[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    assert recorded == before + 1 == len(launches_of(model))
    assert drafted.tokens == single.tokens


@pytest.mark.parametrize("method", ["full", "hash"])
def test_several_contexts_draft_in_one_pass_as_each_does(models, method: str) -> None:
    """A right draft, a wrong one and none."""
    _, model = models(DEFAULT)
    prompt, batch = tiny_models.prompt(DEFAULT, SEED), Batch(model)
    singles, contexts = (
        [context_of(model, "f16", method, prompt[:n]) for n in (12, 9)] for _ in range(2)
    )
    guesses: list[list[list[int]]] = [[[1, 7], []], [[], [2]], [[1], []], [[], []]]
    for tokens, drafts in zip(((3, 5), (1, 9), (4, 2), (1, 6)), guesses):
        batch.decode_together(contexts, tokens, drafts)
        for single, context, token, draft in zip(singles, contexts, tokens, drafts):
            want = single.decode(token, draft)
            np.testing.assert_allclose(context.logits, want, rtol=0, atol=1e-5)
    assert [one.stats.accepted_tokens for one in contexts] == [2, 1]
    assert [one.tokens for one in contexts] == [one.tokens for one in singles]


def test_a_context_that_was_cut_goes_on(models) -> None:
    """What stood there is written anew, in columns, too. A number that was rounded to f16 the other
    way moves logits by some 1e-4."""
    here, there = models(DEFAULT)
    prompt, rows = tiny_models.prompt(DEFAULT, SEED)[:9], []
    for model in (here, there):
        with context_of(model, "f16", "hash", prompt) as context:
            for token in (3, 1, 4):
                context.decode(token)
            context.truncate(7)
            rows.append([context.decode(token).copy() for token in (5, 9, 2, 6)])
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-3)


def test_choices_can_be_recorded(models, tmp_path: Path) -> None:
    files = []
    for model in models(DEFAULT):
        prompt = tiny_models.prompt(DEFAULT, SEED)[:13]
        with context_of(model, "f16", "hash", prompt) as context:
            files.append(tmp_path / f"{len(files)}.bin")
            with context.recording(files[-1]):
                for token in (3, 1):
                    context.decode(token)
    assert files[0].read_bytes() == files[1].read_bytes()
