"""A context over shards is one context: outputs, choices and ids."""

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend, Full
from kvarn.runtime.packs.pack import build_pack, index_pack
from kvarn.runtime.shards import answers
from kvarn.runtime.shards.frames import Kind, Message, text_array
from kvarn.runtime.shards.head import shares
from kvarn.runtime.shards.shard import Shard

from ..context.batch import together
from ..reading import SHAPE, ids_of
from .processes import ShardProcess, attended, greedy, opened, over, shards

N = 4300
QUESTION = " Which wheel turned all day?"
METHODS = [
    kvarn.Full(),
    kvarn.Hash(budget=200, sink=8, window=32),
    kvarn.TopK(budget=200, index="flat"),
]
ROUNDING = 0.2
"""Of logits of a model whose activations are rounded to 8 bits: 0.08 was measured."""


@pytest.mark.parametrize("kv", ["f16/f16", "q8_0/q8_0", "q4_0/q4_0"])
def test_outputs_and_choices_are_those_of_one_context(
    model: kvarn.Model, tmp_path: Path, kv: str
) -> None:
    pack, rng = tmp_path / "pack", np.random.default_rng(0)
    build_pack(model, kvarn.Disk(pack, *kv.split("/")), ids_of(model, N), N)
    index_pack(model, pack, METHODS[1])
    with shards(pack, (0, 1), (1, 3), (3, 4)) as processes:
        for some, n_rows in product((processes[:2], processes), (1, 5)):
            q = rng.standard_normal((n_rows, SHAPE.n_heads, SHAPE.head_dim)).astype(np.float32)
            check_same(model, pack, some, q, N)


def check_same(
    model: kvarn.Model, pack: Path, some: list[ShardProcess], q: np.ndarray, n: int
) -> None:
    """Attention of q (T, H, E) to a pack of n tokens is that of one context, for all methods."""
    addresses = [one.address for one in reversed(some)]  # in any order
    for method in METHODS:
        attend = over(addresses, method)
        with opened(model, pack, attend) as here, opened(model, pack, method) as one:
            found, lists = attended(here, q, n - len(q))
            expected, of_one = attended(one, q, n - len(q))
        assert lists == of_one
        assert method.selects == bool(lists)
        for x, y in zip(found, expected):
            assert np.abs(x - y).max() < 1e-5 * np.abs(y).max(), (method, len(q))


@pytest.mark.parametrize(("spare", "more"), [(0.0, 1), (0.6, 3), (1.0, 0)])
def test_who_was_asked_for_too_few_tokens_is_asked_again(
    model: kvarn.Model, pack: Path, monkeypatch: pytest.MonkeyPatch, spare: float, more: int
) -> None:
    monkeypatch.setattr(shares, "_SPARE", spare)
    monkeypatch.setattr(shares, "_MORE", more)
    monkeypatch.setattr(shares, "_STEP", 1)
    rng = np.random.default_rng(0)
    with shards(pack, (0, 1), (1, 3)) as processes:
        q = rng.standard_normal((5, SHAPE.n_heads, SHAPE.head_dim)).astype(np.float32)
        check_same(model, pack, processes, q, 5200)


@pytest.mark.data
@pytest.mark.parametrize("file", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_real_models(data_dir: Path, tmp_path: Path, file: str) -> None:
    path, n = Path.home() / ".cache" / "kvarn-real" / file, 2600
    if not path.exists():
        pytest.skip(f"{path} is not there: shared/data/real_models.py fetches it")
    model, pack = kvarn.load(path), tmp_path / "pack"
    text = (data_dir / "text" / "cbronte_jane_1847.txt").read_text()
    build_pack(model, pack, model.tokenizer.encode(text[: 8 * n])[:n], n)
    index_pack(model, pack, METHODS[1])
    config, rng = model.config, np.random.default_rng(0)
    with shards(pack, (0, 1), (1, 2)) as processes:
        for n_rows, scale in product((1, 3), (1, 8)):  # and where few tokens have all the weight
            q = rng.standard_normal((n_rows, config.n_heads, config.head_dim)).astype(np.float32)
            check_same(model, pack, processes, q * np.float32(scale), n)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_greedy_ids_are_those_of_one_context(
    model: kvarn.Model, pack: Path, method: Attend
) -> None:
    ids = []
    with shards(pack, (0, 1), (1, 4)) as processes:
        for attend in (method, over([one.address for one in processes], method)):
            with opened(model, pack, attend) as context:
                context.prefill(ids_of(model, 20, seed=1))
                ids.append(greedy(context, 64))
    assert len(ids[0]) == 64 and ids[0] == ids[1]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_tokens_of_the_head_may_complete_a_segment(
    model: kvarn.Model, pack: Path, method: Attend
) -> None:
    """What is recorded of them then reads from other places."""
    ids = []
    with shards(pack, (0, 1), (1, 3)) as processes:
        for attend in (method, over([one.address for one in processes], method)):
            with opened(model, pack, attend) as context:
                context.prefill(ids_of(model, 6 * 1024 - 10 - len(context.tokens)))
                ids.append(greedy(context, 20))
    assert len(ids[0]) == 20 and ids[0] == ids[1]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_trained_model_predicts_the_same(
    mini: kvarn.Model, mini_pack: Path, method: Attend
) -> None:
    """Its activations are rounded to 8 bits, so that outputs which differ in the last bit differ by
    more in the logits: as much as the same ids do that are read in one pass."""
    logits: list[np.ndarray] = []
    steps = []
    with opened(mini, mini_pack, method) as context:
        context.prefill(context.encode(QUESTION))
        forced = greedy(context, 64)
    with shards(mini_pack, (0, 1), (1, 3), (3, 5)) as processes:
        for attend in (method, over([one.address for one in processes], method)):
            with opened(mini, mini_pack, attend) as context:
                context.prefill(context.encode(QUESTION))
                logits.append(np.stack([context.decode(token).copy() for token in forced]))
                reads = context._cache.attend.reads
                steps.append([(one.steps, one.full_steps) for one in reads])
    assert steps[0] == steps[1]
    one, other = logits
    best = np.sort(one, 1)
    clear = best[:, -1] - best[:, -2] > 2 * ROUNDING
    assert clear.mean() > 0.5
    assert (one.argmax(1) == other.argmax(1))[clear].all()
    assert np.median(np.abs(one - other).max(1)) < ROUNDING


@pytest.mark.parametrize("drafting", [False, True])
def test_a_context_over_shards_in_a_pass_with_others(
    mini: kvarn.Model, mini_pack: Path, drafting: bool
) -> None:
    """Some of its layers have windows, and are recorded where it is alone."""
    with shards(mini_pack, (0, 2)) as (shard,):
        makes = [partial(opened, mini, mini_pack, over([shard.address], x)) for x in METHODS]
        makes.append(partial(mini.context, 8192))
        prompts = [together.prompt(mini, i, 20) for i in range(len(makes))]
        together.check(mini, makes, prompts, drafting=drafting)


def test_a_prompt_of_many_rows_is_read_as_by_one_context(model: kvarn.Model, pack: Path) -> None:
    logits = []
    with shards(pack, (0, 4)) as (shard,):
        for attend in (Full(), over([shard.address])):
            with opened(model, pack, attend) as context:
                context.prefill(ids_of(model, 600, seed=1))
                logits.append(context.logits.copy())
    assert np.abs(logits[0] - logits[1]).max() < 1e-4 * np.abs(logits[0]).max()


def test_as_many_bytes_move_as_documents_say(model: kvarn.Model, pack: Path) -> None:
    h, e, j, numbers = SHAPE.n_heads, SHAPE.head_dim, SHAPE.n_kv_heads, 3 * 8
    full = numbers + 4 * h * e + 4 * h * (e + 2)
    each = full + numbers + 8 * h + len("simhash-32-20240517") + 8 * j  # and how many were read
    # Of at most 200 tokens that two query heads share, and their limits and signatures.
    best = 4 * 8 + 8 * h + len("simhash-32-20240517") + 8 * h * 100
    cases = (
        (METHODS[0], "all", full),
        (METHODS[1], "each", each),
        (METHODS[1], "all", best + each + 8 * h),
    )
    for method, choice, n_bytes in cases:
        with shards(pack, (0, 2), (2, 5)) as processes:
            attend = over([one.address for one in processes], method, choice=choice)
            with opened(model, pack, attend) as context:
                context.prefill([1, 2, 3])
                links = context._cache.attend._links
                before = links.n_bytes
                context.decode(4)
                moved = (links.n_bytes - before) / 2 / SHAPE.n_layers
                least = each + 8 * h * 50 if n_bytes > each else n_bytes  # as many as are wanted
                assert least <= moved <= n_bytes


def test_an_answer_depends_on_the_question_and_the_pack_alone(pack: Path) -> None:
    """Whether the shard has been asked for its best tokens before, by this head or others, or not:
    a lost connection may come between. More and fewer tokens compete from question to question, so
    that others need more room, and there are fewer candidates than k could have."""
    rng, name = np.random.default_rng(0), text_array("simhash-32-20240517")
    shape = 1, SHAPE.n_heads, SHAPE.head_dim
    number, numbers, none = np.array([0]), np.array([0, 0.5, 0]), np.empty(0, np.uint64)
    shard, answered = Shard(pack, 1, 3), []
    for i in range(80):
        choice = np.array([1024 + i % 2, 3072 - 30 * (7 * i % 40), 600 + i // 40 if i % 5 else 60])
        if i % 2 == 0:
            q = rng.standard_normal(shape).astype(np.float32)
            signatures = rng.integers(0, 1 << 32, (SHAPE.n_kv_heads, 2), np.uint64)
        kind, by, signed = Kind.LARGEST, [q], [none[:, None], name[:0]]
        if i % 4 > 1:
            kind, by = Kind.NEAREST, (signed := [signatures, name])
        best = Message.of(kind, [number, choice, *by])
        (entries,) = shard.answer(best).arrays
        limits = np.sort(entries, 1)[:, 40].copy() if i % 2 else none
        arrays = [numbers, choice, q, limits, *signed]
        for question in (Message.of(Kind.CHOSEN, arrays), Message.of(Kind.SKETCHED, arrays[:3])):
            answered.append((best, question, shard.answer(question)))
    for _ in range(2):
        for best, question, expected in answered:
            assert Shard(pack, 1, 3).answer(question) == shard.answer(question) == expected
            shard.answer(best)  # and then nothing: the head has gone


def test_heads_none_of_whose_tokens_are_chosen_count_for_nothing(pack: Path) -> None:
    """In the part of a shard: the masses of their outputs, which are of a token that is not chosen,
    are those of no token. The other heads' are not."""
    rng, name = np.random.default_rng(0), text_array("simhash-32-20240517")
    q = rng.standard_normal((1, SHAPE.n_heads, SHAPE.head_dim)).astype(np.float32)
    signatures = rng.integers(0, 1 << 32, (SHAPE.n_kv_heads, 2), np.uint64)
    limits = np.zeros(SHAPE.n_heads, np.uint64)
    group = SHAPE.n_heads // SHAPE.n_kv_heads
    limits[:group] = np.iinfo(np.uint64).max
    arrays = [np.array([0, 0.5, 0]), np.array([1024, 3072, 100]), q, limits, signatures, name]
    shard = Shard(pack, 1, 3)
    for _ in range(3):  # also recorded
        _, masses, counts = shard.answer(Message.of(Kind.CHOSEN, arrays)).arrays
        assert counts[0] > 0 and not counts[1:].any()
        assert (masses[0, :group, 0] > -100).all()
        assert (masses[0, group:] == np.array([-1e30, 1], np.float32)).all() and len(counts) > 1


def test_answers_that_are_asked_for_again_are_recorded(pack: Path) -> None:
    """Once for all queries, and all tokens that compete; those of another number are others."""
    rng, shard, recorded = np.random.default_rng(0), Shard(pack, 1, 3), []
    bests = shard._answers._bests
    for i, k in enumerate((100, 101, 100, 100)):
        q = rng.standard_normal((1, SHAPE.n_heads, SHAPE.head_dim)).astype(np.float32)
        choice = np.array([1024, 3072 - i, k])
        shard.answer(Message.of(Kind.LARGEST, [np.array([0]), choice, q]))
        recorded.append([best._launches._recorded for best in bests.values()])
    assert recorded[:2] == [[None], [None, None]]
    assert recorded[2][0] is recorded[3][0] is not None and recorded[3][1:] == [None]


def test_few_bytes_of_recorded_answers_are_kept(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_MOST_BYTES", 200_000)
    q, shard = np.ones((1, SHAPE.n_heads, SHAPE.head_dim), np.float32), Shard(pack, 1, 3)
    for k in range(100, 150):
        shard.answer(Message.of(Kind.LARGEST, [np.array([0]), np.array([1024, 3072, k]), q]))
        kept = shard._answers._replies.values()
        assert sum(reply.n_bytes for reply in kept) == shard._answers._n_bytes <= 200_000
    assert 5 < len(kept) < 10
    assert len(shard._answers._bests) == len(kept)


def test_shards_are_asked_for_few_different_numbers_of_tokens() -> None:
    asked = set()
    for given in range(200, 400):
        shared = shares.Shares()
        shared.update(0, [given])
        (n,), (most,) = shared.plan(0, [(8, 5000)], 440)
        assert given < n <= most == 440
        asked.add(n)
    assert asked == {320, 384, 440}
