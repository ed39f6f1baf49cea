"""What was read is not read again; packs by name; vectors of texts."""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvarn import build_pack
from kvarn.runtime.home import pack_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import pack_info
from kvarn.runtime.serving.calls import RequestRefused
from kvarn.runtime.serving.prompt import Reading, Text
from kvarn.runtime.serving.protocol import Progress
from kvarn.runtime.store import Disk
from kvarn.runtime.store.disk.checking.verify import verify

from ...models import tiny_cases, tiny_models
from ...models.adapters import random_pairs, write_adapter
from .live import GREEDY, Answer, Live, live, start_of

TEXT = "The mill stood by the river, and the miller slept. " * 60


@pytest.fixture(scope="module")
def model() -> Model:
    return load(threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Live]:
    with live(start_of(folder, cache_bytes=1 << 28)) as running:
        yield running


def cached_of(answer: Answer) -> int:
    assert answer.done is not None
    return answer.done.n_cached


def test_the_same_prompt_is_not_read_again(engine: Live) -> None:
    first = engine.run(engine.answer(TEXT, max_tokens=8, sampling=GREEDY))
    again = engine.run(engine.answer(TEXT, max_tokens=8, sampling=GREEDY))
    assert first.done is not None
    assert (cached_of(first), cached_of(again)) == (0, first.done.n_prompt - 1)
    assert again.text == first.text
    assert again.progress[0].cached == again.progress[0].done == cached_of(again)


def test_what_was_read_outlasts_the_engine(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "cache"
    with live(start_of(other, cache_bytes=1 << 28)) as running:
        first = running.run(running.answer(TEXT, max_tokens=8, sampling=GREEDY))
    with live(start_of(other, cache_bytes=1 << 28)) as running:
        again = running.run(running.answer(TEXT, max_tokens=8, sampling=GREEDY))
    assert first.done is not None
    assert (cached_of(again), again.text) == (first.done.n_prompt - 1, first.text)
    assert all(not verify(path) for path in other.iterdir() if path.is_dir())


def test_a_request_may_be_kept_out_of_the_library(engine: Live) -> None:
    reading, text = Reading(keep_in_library=False), "A secret. " * 100
    for _ in range(2):
        answer = engine.run(engine.answer(text, max_tokens=2, sampling=GREEDY, reading=reading))
        assert cached_of(answer) == 0


def test_a_pack_is_read_listed_used_and_removed(engine: Live, model: Model) -> None:
    async def read() -> list[object]:
        return [message async for message in engine.client.read_pack("mill", TEXT)]

    messages = engine.run(read())
    ids = model.tokenizer.encode(TEXT, bos=True)
    assert messages[0] == Progress(messages[0].id, 0, len(ids), 0)  # type: ignore[attr-defined]
    assert messages[-1].n_prompt == len(ids)  # type: ignore[attr-defined]
    assert pack_info(pack_path("mill")).complete
    assert not verify(pack_path("mill"))
    facts = {one.name: one for one in engine.run(engine.client.packs())}["mill"]
    assert (facts.name, facts.n_tokens, facts.model) == ("mill", len(ids), "kvarn-mini")
    question, reading = "Who slept?", Reading(pack="mill")
    answer = engine.run(engine.answer(question, max_tokens=8, sampling=GREEDY, reading=reading))
    assert cached_of(answer) >= len(ids)
    with model.context(2048) as context:
        context.prefill(ids)
        with_question = context.encode(question)
        assert answer.done is not None
        assert answer.done.n_prompt == len(ids) + len(with_question)
    assert "mill" not in {one.name for one in engine.run(engine.client.remove_pack("mill"))}
    assert not pack_path("mill").exists()


def test_another_text_does_not_go_into_a_pack(engine: Live) -> None:
    async def read(text: str) -> None:
        async for _ in engine.client.read_pack("taken", text):
            pass

    engine.run(read(TEXT))
    with pytest.raises(RequestRefused, match="another text") as error:
        engine.run(read("Other words."))
    assert error.value.refused.kind == "invalid"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nowhere", "not found"), ("../x", "invalid"), (".x", "invalid"), ("x" * 201, "invalid")],
)
def test_a_pack_that_is_none_is_refused(engine: Live, name: str, kind: str) -> None:
    with pytest.raises(RequestRefused) as error:
        engine.run(engine.answer("a", reading=Reading(pack=name)))
    assert error.value.refused.kind == kind
    with pytest.raises(RequestRefused) as error:
        engine.run(engine.client.remove_pack(name))
    assert error.value.refused.kind == kind
    assert f"pack '{name[:80]}'" in error.value.refused.message or name == ".x"


def test_a_pack_of_which_a_part_is_read_is_told_and_refused(engine: Live, model: Model) -> None:
    with model.context(2048, store=Disk(pack_path("half"), goal=900)) as context:
        context.prefill([1, 2, 3] * 200)
    facts = {one.name: one for one in engine.run(engine.client.packs())}["half"]
    assert (facts.n_tokens, facts.is_sound, facts.is_finished) == (600, True, False)
    with pytest.raises(RequestRefused) as error:
        engine.run(engine.answer("a", reading=Reading(pack="half")))
    refused = error.value.refused
    assert refused.kind == "invalid"
    assert refused.message.startswith("pack 'half': it is not finished, 600 of 900 tokens are read")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of a process, by another")
def test_a_pack_that_cannot_be_written_is_told_by_its_name(engine: Live) -> None:
    async def read() -> None:
        async for _ in engine.client.read_pack("full", TEXT):
            pass

    limits = resource.prlimit(engine.client.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(engine.client.pid, resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(RequestRefused) as error:
            engine.run(read())
    finally:
        resource.prlimit(engine.client.pid, resource.RLIMIT_FSIZE, limits)
    refused = error.value.refused
    assert refused.kind == "engine"
    assert refused.message.startswith("pack 'full': cannot be written: File too large")


def test_a_limit_that_cannot_be_is_the_fault_of_its_request(engine: Live) -> None:
    with pytest.raises(RequestRefused, match="max_tokens: expected a whole number") as error:
        engine.run(engine.answer("a", max_tokens=1 << 40))
    assert error.value.refused.kind == "invalid"


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("other", r"it was made with \S+ \(fingerprint \w+\), this model is kvarn-mini "),
        ("adapted", r"it was made with adapters l.gguf:1 .+, found none$"),
    ],
)
def test_a_pack_of_another_model_is_the_fault_of_its_request(
    engine: Live, model: Model, tmp_path: Path, name: str, difference: str
) -> None:
    """Asked, or read into: it is told by its name, what made it, and what is found."""
    if name == "other":
        tiny_models.write(file := tmp_path / "tiny.gguf", tiny_cases.CASES[0], 1)
        made = load(file)
    else:
        shapes = {"blk.0.ffn_down.weight": model.file.tensors["blk.0.ffn_down.weight"].shape}
        pairs = random_pairs(shapes, 4)
        made = load(lora=write_adapter(tmp_path / "l.gguf", model.file.architecture, pairs))
    build_pack(made, pack_path(name), [1, 2, 3] * 40)

    async def read() -> None:
        async for _ in engine.client.read_pack(name, TEXT):
            pass

    for asked in (lambda: engine.answer("a", reading=Reading(pack=name)), read):
        with pytest.raises(RequestRefused) as error:
            engine.run(asked())
        refused = error.value.refused
        assert refused.kind == "invalid"
        assert re.match(f"pack '{name}': {difference}", refused.message)
        assert str(pack_path(name).parent) not in refused.message
        assert str(tmp_path) not in refused.message


def test_vectors_are_means_of_hidden_states(engine: Live, model: Model) -> None:
    prompts = [Text("The mill."), Text(TEXT), Text("The mill.")]
    vectors = engine.run(engine.client.embed(prompts))  # type: ignore[arg-type]
    rows = [np.frombuffer(one, "<f4") for one in vectors.vectors]
    ids = [model.tokenizer.encode(one.text, bos=True) for one in prompts]
    assert vectors.n_tokens == sum(map(len, ids))
    for row, tokens in zip(rows, ids):
        with model.context(2048) as context:
            hidden = [context.reader.forward(it).copy() for it in context.reader.chunks(tokens)]
        mean = np.concatenate(hidden).mean(0, dtype=np.float64)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-6)
    assert (rows[0] == rows[2]).all()
    texts = [one.text for one in prompts]  # read by a server in other slices than alone
    np.testing.assert_allclose(rows, model.embed(texts), rtol=1e-4, atol=1e-6)

    async def told() -> None:
        while "vectors are the mean of a text's tokens" not in "".join(engine.lines):
            await asyncio.sleep(0.02)

    engine.run(told())


@pytest.mark.parametrize("first", ["full", "hash"])
def test_a_pack_keeps_the_index_of_the_method_that_it_is_read_for(
    tmp_path: Path, first: str
) -> None:
    """Asked for again with another method, it gets the index of that; a question then writes
    none of the pack's tokens, which would take 1,024 items of each full segment."""
    folder, name = tmp_path / "cache", f"indexed-{first}"
    words = {"method": "hash", "budget": "64", "encoders": "simhash"}

    async def read(running: Live, reading: Reading) -> None:
        async for _ in running.client.read_pack(name, TEXT * 3, reading):
            pass

    with live(start_of(folder, n_ctx=8192, cache_bytes=1 << 28)) as running:
        running.run(read(running, Reading(words={"method": "full"} if first == "full" else words)))
        running.run(read(running, Reading(words=words)))
        index = sorted(path.name for path in pack_path(name).glob("index-*"))
        assert index and not verify(pack_path(name))
        reading = Reading(words=words, pack=name)
        asked = running.answer("Who slept?", max_tokens=8, sampling=GREEDY, reading=reading)
        answer = running.run(asked)
    assert cached_of(answer) > 1024
    (entry,) = (path for path in folder.iterdir() if path.is_dir())
    assert not list(entry.glob("index-*"))
