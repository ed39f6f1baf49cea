"""A pass over a draft gives each token the bits that it has alone, and so the same ids.

The oracle is a context that decodes token by token.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.convert.quantize.files import quantise_file
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.context import Context, saving
from kvarn.runtime.draft import Draft, DraftModel, Ngram
from kvarn.runtime.draft.lengths import Lengths
from kvarn.runtime.model import Model

from ...models import adapters, tiny_cases, tiny_models, tiny_quants

GREEDY = kvarn.Sampler(temp=0)
BUDGET = {"budget": 16, "sink": 4, "window": 16}
ATTEND = {
    "full": None,
    "topk": kvarn.TopK(**BUDGET),
    "hash": kvarn.Hash(**BUDGET),
    "magicpig": kvarn.MagicPig(dense_layers="none", sink=4, window=16),
}
OTHERS = {"means": kvarn.TopK(**BUDGET, tail="means"), "auto": kvarn.Auto(full_up_to=256)}
KEEP = {"streaming": kvarn.Streaming(90), "hashevict": kvarn.HashEvict(90), "h2o": kvarn.H2O(90)}
KV = ("f16", "q8_0", "q4_0")
MIXERS = (
    "llama-mha",
    "gemma3",
    "gemma4-shared",
    "qwen3moe",
    "deepseek2",
    "qwen35",
    "lfm2",
    "granitehybrid",
    "falcon-h1",
)
"""Each kind of mixer, layers with windows, that share keys and values, and experts."""


def ids_of(model: Model, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.config.n_vocab, n).tolist()


def paired(name: str) -> list[dict[str, Any]]:
    """Options of a mixer's contexts: every method, each with one type of keys and values."""
    return [
        {"attend": attend, "store": kvarn.Ram(kind := KV[number % len(KV)], kind)}
        for number, attend in enumerate(ATTEND.values(), MIXERS.index(name))
    ]


def tiny_case(name: str, folder: Path) -> Model:
    tiny_models.write(folder / "m.gguf", next(c for c in tiny_cases.CASES if c.name == name), 1)
    return kvarn.load(folder / "m.gguf")


def decode(context: Context, ids: list[int], sizes: Iterator[int]) -> Iterator[np.ndarray]:
    """The logits after each of the ids, drafted in passes of these sizes, of which every third one
    has a wrong guess."""
    n_vocab, n_passes = context.model.config.n_vocab, 0
    for i, token in enumerate(ids):
        draft: list[int] = []
        if not context.reads_ahead(token):
            draft = ids[i + 1 : i + 1 + min(context.draft_room, next(sizes) - 1)]
            n_passes += 1
            if draft and n_passes % 3 == 0:
                wrong = len(draft) // 2
                draft[wrong] = (draft[wrong] + 1) % n_vocab
        yield context.decode(token, draft)


def check(
    make: Callable[[], Context], n: int, n_more: int = 50, sizes: tuple[int, ...] = (4, 2, 7, 3)
) -> None:
    """Tokens after a prompt of n, with drafts and without."""
    with make() as single, make() as drafted:
        prompt, ids = ids_of(single.model, n), ids_of(single.model, n_more, 1)
        prompt = [*single.tokens, *prompt]
        for context in (single, drafted):
            context.prefill(prompt[len(context.tokens) :])
        for i, logits in enumerate(decode(drafted, ids, cycle(sizes))):
            np.testing.assert_array_equal(logits, single.decode(ids[i]), f"token {i}")
        np.testing.assert_array_equal(drafted.reader.hidden, single.reader.hidden)
        assert drafted.tokens == single.tokens == [*prompt, *ids]
        assert drafted.stats.accepted_tokens > n_more // 3


@pytest.mark.parametrize("name", [case.name for case in tiny_cases.CASES])
def test_architectures(name: str, tmp_path: Path) -> None:
    check(partial(tiny_case(name, tmp_path).context, 128), 30, 30)


@pytest.mark.parametrize("kind", tiny_quants.KINDS)
def test_types_of_weights(kind: str, tmp_path: Path) -> None:
    tiny_quants.write(tmp_path / "m.gguf", kind)
    check(partial(kvarn.load(tmp_path / "m.gguf").context, 128), 30, 50, (2, 3, 4, 5, 8, 9, 13))


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_with_every_method_and_type_of_keys(name: str, tmp_path: Path) -> None:
    """In pairs: each of the three with each of the others."""
    model = tiny_case(name, tmp_path)
    for options in paired(name):
        check(partial(model.context, 200, **options), 90, 24)


@pytest.mark.parametrize("n", [1000, 2030])
@pytest.mark.parametrize("attend", [*ATTEND, *OTHERS])
def test_where_a_segment_ends(attend: str, n: int) -> None:
    """There indexes begin, or change."""
    check(partial(kvarn.load().context, 2100, (ATTEND | OTHERS)[attend]), n, 60)


@pytest.mark.parametrize("attend", ATTEND)
def test_where_a_segment_ends_in_layers_that_share_keys(attend: str, tmp_path: Path) -> None:
    """There one layer chooses by what another has indexed."""
    model = tiny_case("gemma4-shared", tmp_path)
    check(partial(model.context, 2100, ATTEND[attend]), 2030, 30, (7,))


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("name", ["llama-mha", "granitehybrid"])
def test_contexts_that_evict(name: str, keep: str, tmp_path: Path) -> None:
    """Drafts end where slots are full."""
    check(partial(tiny_case(name, tmp_path).context, 400, keep=KEEP[keep]), 60, 29)


def test_adapters(tmp_path: Path) -> None:
    case = adapters.CASES["llama-mha"]
    tiny_models.write(tmp_path / "m.gguf", case, 1)
    pairs = adapters.random_pairs(adapters.projections(case), 5)
    lora = adapters.write_adapter(tmp_path / "a.gguf", case.architecture, pairs, alpha=4.0)
    check(partial(kvarn.load(tmp_path / "m.gguf", lora=str(lora)).context, 128), 30)


@pytest.mark.parametrize("attend", ATTEND)
def test_contexts_that_read_a_pack(attend: str, tmp_path: Path) -> None:
    """Its pages are mapped, and passes are not recorded."""
    model = kvarn.load()
    with model.context(1200, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids_of(model, 1030, 2))
    store = kvarn.Disk(tmp_path / "pack", read_only=True)
    check(partial(model.context, 1200, ATTEND[attend], store=store), 20)


@pytest.mark.parametrize(("name", "attend"), [*product(["mini"], ATTEND), ("qwen35", "topk")])
def test_packs_are_those_of_single_tokens(
    name: str, attend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, saved at the same tokens, after the end of a segment."""
    monkeypatch.setattr(saving, "SECONDS", np.inf)
    model, saved = kvarn.load() if name == "mini" else tiny_case(name, tmp_path), []
    for pack, size in (("single", 1), ("drafted", 6)):
        store = kvarn.Disk(tmp_path / pack)
        with model.context(2100, ATTEND[attend], store=store) as context:
            context.prefill(ids_of(model, 1000))
            for _ in decode(context, ids_of(model, 100, 1), cycle((size,))):
                pass
            context.decode(9, [1, 2, 3][: size - 1])  # a draft that is not taken
        files = {path.name: path.read_bytes() for path in (tmp_path / pack).iterdir()}
        del files["pack.json"]  # has the pack's own number
        saved.append(files)
    assert len(saved[0]) > 3 and saved[0] == saved[1]


def answers(model: Model, small: Model, make: Callable[[], Context], prompt: list[int]) -> None:
    """Greedy ids without a draft, by repetitions and by a model."""
    drafts: list[Draft | None] = [None, Ngram(min_match=1), DraftModel(small, min_probability=0)]
    found, accepted = [], []
    for draft in drafts:
        with make() as context:
            found.append(list(context.generate_ids(prompt, 40, GREEDY, False, draft)))
            accepted.append(context.stats.accepted_tokens)
    assert found[0] == found[1] == found[2]
    assert accepted[2] > accepted[0] == 0


@pytest.mark.parametrize("name", MIXERS)
def test_greedy_ids_of_mixers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a quantised copy as the draft, which guesses as many tokens as it may."""
    monkeypatch.setattr(Lengths, "next", lambda self, longest: (longest, longest))
    model = tiny_case(name, tmp_path)
    quantise_file(tmp_path / "m.gguf", tmp_path / "small.gguf", mix_of("q8_0"))
    small = kvarn.load(tmp_path / "small.gguf")
    prompt = ids_of(model, 30) * 2
    for options in paired(name):
        answers(model, small, partial(model.context, 200, **options), prompt)


@pytest.mark.data
@pytest.mark.parametrize("file", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_greedy_ids_of_real_models(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path.home() / ".cache" / "kvarn-real" / file
    if not path.exists():
        pytest.skip(f"{path} is not there: shared/data/real_models.py fetches it")
    monkeypatch.setattr(Lengths, "next", lambda self, longest: (longest, longest))
    quantise_file(path, tmp_path / "small.gguf", mix_of("q4_0"), allow_requantise=True)
    model, small = kvarn.load(path), kvarn.load(tmp_path / "small.gguf")
    text = "Write the numbers from one to thirty in words, one after the other. " * 8
    prompt = model.tokenizer.encode(text, bos=True)
    for attend in ATTEND.values():
        answers(model, small, partial(model.context, 512, attend), prompt)
