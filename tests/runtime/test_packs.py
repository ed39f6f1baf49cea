"""Contexts on packs: what was read once is never read again, and nothing changes by it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn import Disk
from kvarn.runtime.context.reading.prompt import CHUNK, ContextError
from kvarn.runtime.context.saving import TOKENS
from kvarn.runtime.draft import Ngram
from kvarn.runtime.model import Model
from kvarn.runtime.store import PackError
from kvarn.runtime.store.disk import files
from lab.peers.model import Shape, write_model

from ..programs import printed
from .reading import ids_of

GREEDY = kvarn.Sampler(temp=0)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("n", [5, 1024, 1400])
def test_a_reopened_pack_gives_the_same_logits_without_reading(
    tiny: Model, tmp_path: Path, kind: str, n: int
) -> None:
    ids = ids_of(tiny, n)
    with tiny.context(2048, store=Disk(tmp_path / "pack", kind, kind)) as context:
        before = context.prefill(ids).copy()
        after = [context.decode(token).copy() for token in (3, 4)]
        context.truncate(n)
        context.commit()
    in_memory = tiny.context(2048, store=kvarn.Ram(kind, kind))
    np.testing.assert_array_equal(in_memory.prefill(ids), before)
    for read_only in (True, False):
        again = tiny.context(2048, store=Disk(tmp_path / "pack", read_only=read_only))
        assert again.tokens == ids
        assert again.stats.prefilled_tokens == 0
        np.testing.assert_array_equal(again.logits, before)
        for token, wanted in zip((3, 4), after, strict=True):
            np.testing.assert_array_equal(again.decode(token), wanted)
        again.truncate(n)
        again.close()


def test_a_new_process_goes_on_bit_for_bit(tiny: Model, tiny_path: Path, tmp_path: Path) -> None:
    ids = ids_of(tiny, 1100)
    with tiny.context(2048, store=Disk(tmp_path / "pack")) as context:
        wanted = [context.prefill(ids).copy()]
    straight = tiny.context(2048)
    np.testing.assert_array_equal(straight.prefill(ids), wanted[0])
    wanted += [straight.decode(token).copy() for token in (7, 8, 9)]
    code = (
        "import sys, numpy, kvarn\n"
        "model = kvarn.load(sys.argv[1], threads=1)\n"
        "context = model.context(2048, store=kvarn.Disk(sys.argv[2], read_only=True))\n"
        "rows = [context.logits] + [context.decode(token) for token in (7, 8, 9)]\n"
        "assert context.stats.prefilled_tokens == 0\n"
        "numpy.save(sys.argv[3], numpy.stack(rows))\n"
    )
    out = tmp_path / "logits.npy"
    printed(code, tiny_path, tmp_path / "pack", out)
    np.testing.assert_array_equal(np.load(out), np.stack(wanted))


def test_an_interrupted_prefill_goes_on_at_the_last_chunk(tiny: Model, tmp_path: Path) -> None:
    ids = ids_of(tiny, 3 * CHUNK + 40)

    def stop(done: int, total: int) -> None:
        if done == 2 * CHUNK:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        tiny.context(2048, store=Disk(tmp_path / "pack")) as context,
    ):
        context.prefill(ids, stop)
    with tiny.context(2048, store=Disk(tmp_path / "pack")) as context:
        assert context.tokens == ids[: 2 * CHUNK]
        logits = context.prefill(ids[2 * CHUNK :])
    np.testing.assert_array_equal(tiny.context(2048).prefill(ids), logits)


def test_generated_tokens_are_saved_as_they_come(tiny: Model, tmp_path: Path) -> None:
    context = tiny.context(2048, store=Disk(tmp_path / "pack"))
    context.prefill([1, 2, 3])
    for _ in context.generate_ids((), TOKENS + 20, GREEDY, stop_at_eos=False):
        pass
    reader = tiny.context(2048, store=Disk(tmp_path / "pack", read_only=True))
    assert len(reader.tokens) >= TOKENS + 3
    assert context.tokens[: len(reader.tokens)] == reader.tokens
    context.close()
    last = tiny.context(2048, store=Disk(tmp_path / "pack", read_only=True))
    assert last.tokens == context.tokens


def test_drafts_are_saved_as_far_as_they_were_right(tiny: Model, tmp_path: Path) -> None:
    """Each save holds the state after the last token that was accepted, not read."""
    prompt = [5, 6, 7, 8] * 20
    with tiny.context(512, store=Disk(tmp_path / "pack")) as context:
        ids = list(context.generate_ids(prompt, 40, GREEDY, False, Ngram()))
        assert context.stats.as_dict()["drafted_tokens"] > 0
    plain = tiny.context(512)
    plain.prefill(prompt)
    for token in ids[:-1]:
        wanted = plain.decode(token)
    again = tiny.context(512, store=Disk(tmp_path / "pack"))
    assert again.tokens == prompt + ids[:-1]
    np.testing.assert_array_equal(again.logits, wanted)


def test_several_sessions_share_a_pack(tiny: Model, tmp_path: Path) -> None:
    ids = ids_of(tiny, 1300)
    with tiny.context(4096, store=Disk(tmp_path / "pack")) as context:
        context.prefill(ids)
    sessions = [tiny.context(4096, store=Disk(tmp_path / "pack", read_only=True)) for _ in "ab"]
    questions = ids_of(tiny, 900, seed=1), ids_of(tiny, 700, seed=2)
    answers = [s.prefill(q).copy() for s, q in zip(sessions, questions, strict=True)]
    for question, answer in zip(questions, answers, strict=True):
        alone = tiny.context(4096)
        alone.prefill(ids)
        np.testing.assert_array_equal(alone.prefill(question), answer)
    assert tiny.context(4096, store=Disk(tmp_path / "pack")).tokens == ids


def test_a_child_goes_on_where_its_parent_ends(tiny: Model, tmp_path: Path) -> None:
    ids, more = ids_of(tiny, 1300), ids_of(tiny, 100, seed=1)
    with tiny.context(2048, store=Disk(tmp_path / "pack")) as context:
        wanted = context.prefill(ids).copy()
    child = Disk(tmp_path / "child", parent=tmp_path / "pack")
    with tiny.context(2048, store=child) as context:
        np.testing.assert_array_equal(context.logits, wanted)
        wanted = context.prefill(more).copy()
    with tiny.context(2048, store=Disk(tmp_path / "child")) as context:
        assert context.tokens == ids + more
        np.testing.assert_array_equal(context.logits, wanted)


def test_a_cut_is_saved_with_the_next_save(tiny: Model, tmp_path: Path) -> None:
    ids = ids_of(tiny, 1200)
    with tiny.context(2048, store=Disk(tmp_path / "pack")) as context:
        context.prefill(ids)
        context.truncate(700)
        reader = tiny.context(2048, store=Disk(tmp_path / "pack", read_only=True))
        assert reader.tokens == ids
    with tiny.context(2048, store=Disk(tmp_path / "pack")) as context:
        assert context.tokens == ids[:700]
        context.truncate(0)
    with tiny.context(2048, store=Disk(tmp_path / "pack")) as context:
        assert context.tokens == []
        np.testing.assert_array_equal(context.prefill(ids), tiny.context(2048).prefill(ids))


def test_what_does_not_fit_is_refused_with_both_sides(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "pack"
    with tiny.context(64, store=Disk(path, "q8_0", "q4_0")) as context:
        context.prefill([1, 2, 3])
    with pytest.raises(PackError, match=r"its KV cache is K q8_0, V q4_0, asked for is K f16, V f"):
        tiny.context(64, store=Disk(path, "f16", "f16"))
    with pytest.raises(ContextError, match="the pack holds 3 tokens and the context has room"):
        tiny.context(2, store=Disk(path))
    shape = Shape(n_layers=1, n_embd=64, n_heads=4, n_kv_heads=2, head_dim=16, n_ff=96, n_vocab=512)
    write_model(tmp_path / "other.gguf", "f16", shape)
    other = kvarn.load(tmp_path / "other.gguf")
    with pytest.raises(PackError) as caught:
        other.context(64, store=Disk(path))
    assert tiny.fingerprint in str(caught.value)
    assert other.fingerprint in str(caught.value)


@pytest.mark.parametrize("sizes", [(64, 65), (65, 64)])
def test_the_two_rotations_of_longrope_do_not_mix(
    tiny: Model, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    config = replace(tiny.config, rope_tensors="longrope", n_ctx_orig=64)
    model: Any = SimpleNamespace(
        config=config,
        name="long",
        fingerprint="0" * 16,
        tokenizer_digest="0" * 16,
        adapters=(),
        path=Path("long.gguf"),
    )
    Disk(tmp_path / "pack").open(model, sizes[0]).close()
    Disk(tmp_path / "pack").open(model, sizes[0]).close()
    with pytest.raises(PackError, match=r"contexts (up to|beyond) 64 tokens, asked for is one"):
        Disk(tmp_path / "pack").open(model, sizes[1])


def test_a_copy_of_a_model_is_the_same_model(tiny: Model, tiny_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "renamed.gguf"
    copy.write_bytes(tiny_path.read_bytes())
    assert kvarn.load(copy).fingerprint == tiny.fingerprint
    data = bytearray(tiny_path.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    assert kvarn.load(copy).fingerprint != tiny.fingerprint


def test_a_failed_save_is_told_once_and_closing_keeps_the_last(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    context = tiny.context(64, store=Disk(tmp_path / "pack"))
    context.prefill([1, 2, 3])
    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(PackError, match="keeps its last commit, of 3 tokens"):
        context.prefill([4, 5])
    monkeypatch.undo()
    with pytest.raises(PackError, match="has failed before"):
        context.commit()
    context.close()
    again = tiny.context(64, store=Disk(tmp_path / "pack"))
    assert again.tokens in ([1, 2, 3], [1, 2, 3, 4, 5])


def test_a_text_is_read_into_a_pack(tiny: Model, tmp_path: Path) -> None:
    """As its ids are; a build that was stopped goes on; what has no room is refused at once."""
    text, seen = "The mill stood by the river. " * 30, []
    ids = tiny.tokenizer.encode(text, bos=tiny.tokenizer.add_bos)
    path = tmp_path / "pack"
    with tiny.context(2048, store=Disk(path, "q8_0", "q8_0")) as context:
        context.prefill(ids[:600])
    info = kvarn.build_pack(
        tiny, Disk(path), text, opened=lambda context: seen.append(len(context.tokens))
    )
    assert seen == [600] and (info.n_tokens, info.goal, info.kv) == (len(ids), 0, "q8_0")
    assert kvarn.build_pack(tiny, str(tmp_path / "new"), ids).goal == len(ids)
    assert tiny.context(store=Disk(path, read_only=True)).tokens == ids
    with pytest.raises(kvarn.KvarnError, match="nothing to read: the text is empty"):
        kvarn.build_pack(tiny, tmp_path / "none", "")
    with pytest.raises(kvarn.KvarnError, match=f"has {len(ids)} tokens, more than the 99 of .*ctx"):
        kvarn.build_pack(tiny, tmp_path / "none", text, n_ctx=99)
    beyond = "tokens, more than .* of the context: use a part of it, or a model"
    with pytest.raises(kvarn.KvarnError, match=beyond):
        kvarn.build_pack(tiny, tmp_path / "none", [1] * (tiny.config.n_ctx_train + 1))
    with pytest.raises(PackError, match=f"{len(ids)} tokens of another text"):
        kvarn.build_pack(tiny, path, ids[:599:-1])
    assert not (tmp_path / "none").exists()
