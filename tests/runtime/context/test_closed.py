"""A closed context keeps its tokens and stats, and does nothing any more."""

import gc
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.context import Context
from kvarn.runtime.context.reading.prompt import ContextError
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk
from kvarn.runtime.store.disk.errors import PackError

GREEDY = kvarn.Sampler(temp=0)
OPEN = {"tokens", "stats", "close"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def every_name(context: Context) -> list[str]:
    return sorted({name for name in dir(context) if not name.startswith("__")} - OPEN)


def test_every_name_of_a_closed_context_is_refused(tiny: Model, tmp_path: Path) -> None:
    """Each method and property, those that there will be included."""
    pack = tmp_path / "pack"
    context = tiny.context(64, store=Disk(pack))
    context.prefill([1, 2, 3])
    names = every_name(context)
    assert {"decode", "commit", "logits", "index", "recording", "fill", "read_all_logits"} <= {
        *names
    }
    taken = {name: getattr(context, name) for name in names}
    context.close()
    kept = contents(pack)
    with tiny.context(64, store=Disk(pack)):  # another one writes the pack now
        for name in names:
            with pytest.raises(ContextError, match="is closed"):
                getattr(context, name)
        for call in (
            lambda: taken["decode"](4),
            lambda: taken["prefill"]([4]),
            lambda: taken["truncate"](1),
            lambda: taken["truncate"](3),
            taken["commit"],
            lambda: taken["fill"](40),
            lambda: list(taken["read_all_logits"]([4])),
            lambda: list(taken["generate"]("x")),
            context.__enter__,
        ):
            with pytest.raises(ContextError, match="is closed"):
                call()
        assert contents(pack) == kept
    context.close()
    assert context.tokens == [1, 2, 3] and str(context.stats)
    assert isinstance(context, Context)


def test_what_had_begun_before_the_close_ends(tiny: Model, tmp_path: Path) -> None:
    context = tiny.context(64, kvarn.Hash(budget=8, sink=4, window=8), store=Disk(tmp_path / "p"))
    context.prefill(list(range(40)))
    begun = [
        context.generate_ids((), 20, GREEDY, stop_at_eos=False),
        context.generate((), 20, GREEDY),
        context.read_all_logits([5] * 10),
    ]
    for one in begun:
        next(one)
    with context.recording(tmp_path / "selections"):
        context.decode(7)
        context.close()
    kept = contents(tmp_path / "p")
    for one in begun[:2]:
        with pytest.raises(ContextError, match="is closed"):
            list(one)
    assert contents(tmp_path / "p") == kept
    assert (tmp_path / "selections").stat().st_size > 0


def test_a_context_that_could_not_be_made_lets_go_of_its_pack(tiny: Model, tmp_path: Path) -> None:
    pack = Disk(tmp_path / "pack")
    with tiny.context(64, store=pack) as context:
        context.prefill([1] * 40)

    class Failing(kvarn.Hash):
        def open(self, *_):
            raise ContextError("as planned")

    kept = []
    for n_ctx, attend in ((20, None), (64, Failing())):
        with pytest.raises(ContextError, match=r"room for 20|as planned") as error:
            tiny.context(n_ctx, attend, store=pack)
        kept.append(error)  # and with it the frames that hold the half-made context
        with pytest.raises(PackError), tiny.context(64, store=pack), tiny.context(64, store=pack):
            pass  # the first of the two could be opened
    gc.collect()


@pytest.mark.parametrize(
    "prompt", [b"a mill", bytearray(b"x"), memoryview(b"x"), ["a", "mill"], [1.5], [[1, 2]], [None]]
)
def test_prompts_that_are_neither_text_nor_ids_are_refused(tiny: Model, prompt) -> None:
    context = tiny.context(64)
    context.prefill([1])
    for call in (
        lambda: context.prefill(prompt),
        lambda: list(context.generate(prompt, max_tokens=1)),
        lambda: list(context.read_all_logits(prompt)),
        lambda: context.decode(1, prompt),
        lambda: context.decode(prompt),
    ):
        with pytest.raises(ContextError, match="a prompt is text or token ids"):
            call()
    assert context.tokens == [1]


def test_one_stop_string_is_one(tiny: Model) -> None:
    whole = "".join(tiny.context(64).generate("a mill", 20, GREEDY))
    stop = whole[5:8]
    for given in (stop, [stop], (one for one in (stop, ""))):
        text = "".join(tiny.context(64).generate("a mill", 20, GREEDY, given))
        assert text == whole[: whole.index(stop)]
    for wrong in (b"abc", [b"abc"], 5, [None]):
        with pytest.raises(kvarn.KvarnError, match=r"stop (is|holds) .* expected text"):
            tiny.context(64).generate("a mill", 20, GREEDY, wrong)
