"""The same prompt has the same bits, whatever a context has read or generated before.

The oracle is an empty context that reads the prompt in one call.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend
from kvarn.runtime.chat.conversation import Conversation
from kvarn.runtime.chat.session import Session
from kvarn.runtime.chat.template import ChatTemplate
from kvarn.runtime.context import Context
from kvarn.runtime.draft import Ngram
from kvarn.runtime.keep import Keep
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import Prefill
from lab.peers.model import write_model

from ...models import tiny_cases, tiny_models
from ...models.tiny.case import SWA
from ..reading import SHAPE

GREEDY = kvarn.Sampler(temp=0)
N_CTX = 2600
HYBRIDS = ("qwen35", "lfm2", "granitehybrid", "falcon-h1")
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 300, 511, 512, 513, 515, 1023, 1024, 1025, 1027, 1540)
BUDGET = {"budget": 40, "sink": 4, "window": 16}
SPARSE = kvarn.SparsePrefill(k=40, index="hash", from_=512)


@dataclass(frozen=True)
class Case:
    """How contexts are made."""

    name: str
    model: str = "q4_0"
    kv: str = "f16"
    attend: Attend | None = None
    keep: Keep | None = None
    prefill: Prefill | None = None
    draft: Ngram | None = None


CASES = (
    Case("full"),
    Case("floats", "f16"),
    Case("8 bits", kv="q8_0"),
    Case("4 bits", kv="q4_0"),
    Case("windows", "windows"),
    Case("drafts", draft=Ngram()),
    Case("experts", "experts", draft=Ngram()),
    Case("hybrids", "qwen35", draft=Ngram()),
    Case("hybrids, topk", "qwen35", "q8_0", attend=kvarn.TopK(**BUDGET)),
    Case("short convolutions", "lfm2", prefill=SPARSE),
    Case("scans", "granitehybrid", "q8_0", attend=kvarn.TopK(**BUDGET)),
    Case("scans beside attention", "falcon-h1", prefill=SPARSE),
    Case("topk", attend=kvarn.TopK(**BUDGET)),
    Case("means", attend=kvarn.TopK(**BUDGET, tail="means")),
    Case("hash", attend=kvarn.Hash(**BUDGET)),
    Case("magicpig", attend=kvarn.MagicPig(dense_layers="none", sink=4, window=16)),
    Case("sparse", prefill=SPARSE),
    Case("sparse sketches", prefill=replace(SPARSE, index="sketch"), attend=kvarn.TopK(**BUDGET)),
    Case("sparse, no tail", prefill=replace(SPARSE, tail="none"), draft=Ngram()),
    Case("in blocks", prefill=kvarn.BlocksPrefill(512)),
    Case("windows in blocks", "windows", prefill=kvarn.BlocksPrefill(512)),
    Case("blocks and sparse", prefill=kvarn.BlocksPrefill(512, rest="sparse")),
    Case("streaming", keep=kvarn.Streaming(900)),
    Case("streaming windows", "windows", keep=kvarn.Streaming(900)),
    Case("hashevict", keep=kvarn.HashEvict(900), attend=kvarn.Hash(**BUDGET)),
    Case("h2o", keep=kvarn.H2O(900)),
    Case("snapkv", keep=kvarn.SnapKV(900), attend=kvarn.TopK(**BUDGET)),
    Case("nacl", keep=kvarn.NaCl(900, every=50)),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """By type of their weights; one whose layers have sliding windows; with experts or states."""
    folder, names = tmp_path_factory.mktemp("models"), ("windows", "experts", *HYBRIDS)
    paths = {name: folder / f"{name}.gguf" for name in ("q4_0", "f16", *names)}
    for kind in ("q4_0", "f16"):
        write_model(paths[kind], kind, replace(SHAPE, n_embd=256, n_heads=8, n_ff=256))
    gemma = next(case for case in tiny_cases.CASES if case.name == "gemma3")
    tiny_models.write(paths["windows"], replace(gemma, keys=gemma.keys | {SWA: 300}), 1)
    for name, other in {"experts": "qwen3moe", **dict(zip(HYBRIDS, HYBRIDS))}.items():
        tiny = next(case for case in tiny_cases.CASES if case.name == other)
        tiny_models.write(paths[name], tiny, 1)
    return {name: load(path) for name, path in paths.items()}


class Reader:
    """Contexts of a case, and the prompts that they read."""

    def __init__(self, case: Case, model: Model) -> None:
        self.case, self.model = case, model
        self.rng = np.random.default_rng(len(case.name))
        self.base = self.ids(N_CTX)

    def ids(self, n: int) -> list[int]:
        """Of few kinds, so that drafts find what followed before."""
        return self.rng.integers(1, 12, n).tolist()

    def context(self, pack: Path | None = None) -> Context:
        case, kv = self.case, (self.case.kv,) * 2
        store = kvarn.Ram(*kv) if pack is None else kvarn.Disk(pack, *kv)
        return self.model.context(N_CTX, case.attend, case.keep, store, case.prefill)

    def prompt(self, context: Context) -> list[int]:
        """The first tokens of the base, or of what the context holds, and perhaps others."""
        known = context.tokens if self.rng.random() < 0.5 else self.base
        n = int(self.rng.choice([*LENGTHS, len(context.tokens)]))
        n_new = int(self.rng.choice([0, 0, 1, 2, 3, 6, 40, 600]))
        return [*known[: min(n, N_CTX - 700)], *self.ids(n_new)] or self.base[:1]

    def answer(self, context: Context, n: int) -> list[int]:
        return list(context.generate_ids((), n, GREEDY, False, self.case.draft))


@pytest.mark.parametrize("on_disk", [False, True], ids=["ram", "disk"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_prompt_has_the_bits_of_an_empty_context(
    case: Case, on_disk: bool, models: dict[str, Model], tmp_path: Path
) -> None:
    if on_disk and case.model in HYBRIDS:
        pytest.skip("packs hold no states yet")
    reader = Reader(case, models[case.model])
    pack = tmp_path / "pack" if on_disk else None
    context, n_kept = reader.context(pack), 0
    for turn in range(12):
        ids = reader.prompt(context)
        shared = context.cut_to_prompt(ids)
        n_kept += shared
        logits = context.prefill(ids[shared:]).copy()
        assert context.tokens == ids
        fresh = reader.context()
        np.testing.assert_array_equal(logits, fresh.prefill(ids), err_msg=f"turn {turn}, {shared}")
        n = int(reader.rng.choice([0, 1, 2, 30]))
        assert reader.answer(context, n) == reader.answer(fresh, n)
        if on_disk and turn % 2:
            context.close()
            context = reader.context(pack)
    context.close()
    assert n_kept


def test_a_message_that_is_answered_again_has_the_same_bits(
    models: dict[str, Model], tmp_path: Path
) -> None:
    """After /regen, after /undo and other messages, and in a session that is resumed."""
    model, read = models["q4_0"], []

    def opened() -> Conversation:
        context = model.context(N_CTX, store=kvarn.Disk(tmp_path / "session"))
        inner = context.prefill
        context.prefill = lambda *args: read.append(inner(*args).copy())  # type: ignore[method-assign]
        template = ChatTemplate.plain(model.tokenizer.control)
        return Conversation(context, template, GREEDY, max_tokens=20)

    talk, session = opened(), Session(tmp_path / "session")
    answers = ["".join(talk.ask(text)) for text in ("One?", "And two?")]
    again = ["".join(talk.regenerate())]
    for text in ("And two?", "Or three, or four?", "And two?"):
        talk.undo()
        again.append("".join(talk.ask(text)))
    session.save(talk)
    talk.context.close()
    talk = opened()
    assert session.load(talk)
    again.append("".join(talk.regenerate()))
    talk.context.close()
    del again[2], read[4]  # of the third message
    assert set(again) == {answers[1]} and len(read) == 6
    for logits in read[2:]:
        np.testing.assert_array_equal(logits, read[1])
