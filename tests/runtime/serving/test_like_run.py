"""The server answers a question about a pack as `kvarn run --pack` does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvarn.cli import main
from kvarn.runtime.home import pack_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.packs.pack import build_pack, remove_pack
from kvarn.runtime.serving.library import LONG
from kvarn.runtime.serving.prompt import Reading

from ..reading import ids_of
from .live import GREEDY, Live, live, start_of

N_CTX, QUESTION = 16384, "The miller is called"


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """A pack that is longer than what is read exactly."""
    model = load(threads=1)
    build_pack(model, pack_path("long"), ids_of(model, LONG + 1500))
    yield "long"
    remove_pack(pack_path("long"))


@pytest.fixture(scope="module", params=[1 << 28, 0], ids=["folder", "memory"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    start = start_of(tmp_path_factory.mktemp("cache"), n_ctx=N_CTX, cache_bytes=request.param)
    with live(start) as running:
        yield running


@pytest.mark.parametrize("words", [{}, {"prefill": "exact"}, {"budget": "64"}])
def test_the_same_words(
    engine: Live, name: str, words: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"method": "topk", **words}
    reading = Reading(words=words, pack=name)
    asked = engine.answer(QUESTION, max_tokens=24, sampling=GREEDY, reading=reading)
    answer = engine.run(asked)
    assert answer.done is not None and answer.done.n_cached > LONG
    options = [part for word, value in words.items() for part in (f"--{word}", value)]
    command = ["run", "--pack", name, "-p", QUESTION, "-n", "24", "--temp", "0", "-c", str(N_CTX)]
    assert main([*command, "-t", "1", *options]) == 0
    out = capsys.readouterr().out
    assert out.strip() == answer.text.strip()
