"""A pack a text: by several processes at once, and after one of them was killed."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kvarn
from kvarn.runtime.model import Model
from kvarn.runtime.packs import texts as building
from kvarn.runtime.packs.pack import build_pack
from kvarn.runtime.packs.texts import PackOutcome, build_packs
from kvarn.runtime.store import PackBusy, PackError
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.facts import PackInfo
from kvarn.system.errors import KvarnError

from ..reading import ids_of

LENGTHS = 1500, 40, 1100, 2600, 1024
CTX = 4096
WORKER = textwrap.dedent(
    """
    import json, os, signal, sys
    import kvarn
    from kvarn.runtime.packs.texts import build_packs

    def begin(path, context):
        print("begins", path.name, len(context.tokens), flush=True)
        def tell(done, total):
            if path.name == sys.argv[3] and done >= 1500:
                os.kill(os.getpid(), signal.SIGKILL)
        return tell

    model = kvarn.load(sys.argv[1], threads=1)
    texts = json.loads(open(sys.argv[2]).read())
    for outcome in build_packs(model, texts, 4096, begin=begin):
        print(outcome.path.name, outcome.n_read, flush=True)
    """
)


def same(model: Model, one: Path, other: Path) -> bool:
    """Whether two packs have the same tokens, K and V, and logits, and no damage."""
    assert not verify(one) and not verify(other)
    layers = [sorted(path.glob("layer-*")) for path in (one, other)]
    if [file.read_bytes() for file in layers[0]] != [file.read_bytes() for file in layers[1]]:
        return False
    stores = (kvarn.Disk(path, read_only=True) for path in (one, other))
    contexts = [model.context(CTX, store=store) for store in stores]
    return contexts[0].tokens == contexts[1].tokens and np.array_equal(
        contexts[0].decode(3), contexts[1].decode(3)
    )


def test_processes_share_the_texts_and_go_on_where_one_was_killed(
    tiny: Model, tiny_path: Path, tmp_path: Path
) -> None:
    texts = {f"{n}": ids_of(tiny, length, n) for n, length in enumerate(LENGTHS)}
    for name, ids in texts.items():
        build_pack(tiny, tmp_path / "wanted" / name, ids, CTX)
    packs = tmp_path / "packs"
    (tmp_path / "texts.json").write_text(
        json.dumps({str(packs / name): ids for name, ids in texts.items()})
    )

    def worker(dies_at: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", WORKER, str(tiny_path), str(tmp_path / "texts.json")]
        return subprocess.Popen([*words, dies_at], stdout=subprocess.PIPE, text=True)

    first = worker("3")
    assert first.wait(timeout=120) == -signal.SIGKILL  # within the fourth text
    others = [worker("none"), worker("none")]
    lines = [
        line.split() for other in others for line in other.communicate(timeout=120)[0].split("\n")
    ]
    assert [other.returncode for other in others] == [0, 0]
    kept = min(int(line[2]) for line in lines if line[:2] == ["begins", "3"])
    assert kept in (512, 1024, 1536, 2048)  # of 2,600: what the last commit holds
    read = [(line[0], int(line[1])) for line in lines if line and line[0] != "begins"]
    assert sum(n for _, n in read) == 2600 - kept + 1024  # nothing is read twice
    assert all(same(tiny, packs / name, tmp_path / "wanted" / name) for name in texts)


def outcomes(model: Model, texts: dict, **options) -> dict[str, PackOutcome]:
    return {one.path.name: one for one in build_packs(model, texts, CTX, **options)}


def test_a_text_that_fails_does_not_stop_the_others(tiny: Model, tmp_path: Path) -> None:
    def gone() -> str:
        raise KvarnError("b.txt: no such file")

    build_pack(tiny, tmp_path / "other", ids_of(tiny, 30, 1), CTX)
    texts = {
        tmp_path / "empty": "",
        tmp_path / "gone": gone,
        tmp_path / "other": ids_of(tiny, 30, 2),
        tmp_path / "long": ids_of(tiny, CTX + 1),
        tmp_path / "read": lambda: "a mill",
    }
    ended = outcomes(tiny, texts)
    messages = {name: str(one.pack) for name, one in ended.items()}
    assert "the text is empty" in messages["empty"]
    assert messages["gone"] == "b.txt: no such file"
    assert "30 tokens of another text" in messages["other"]
    assert "4,097 tokens, more than the 4,096" in messages["long"]
    assert not (tmp_path / "gone").exists() and not (tmp_path / "long").exists()
    assert ended["read"].n_read == ended["read"].pack.n_tokens == 7


def test_what_is_there_is_not_read_again_and_gets_an_index(tiny: Model, tmp_path: Path) -> None:
    texts = {tmp_path / "pack": ids_of(tiny, 1500)}
    assert outcomes(tiny, texts)["pack"].n_read == 1500
    ended = outcomes(tiny, texts, attend=kvarn.Hash())["pack"]
    assert ended.n_read == 0 and ended.pack.indexes


def test_one_text_has_one_pack_if_that_is_asked(tiny: Model, tmp_path: Path) -> None:
    texts = {tmp_path / name: "a mill" for name in "ab"}
    (first, other) = build_packs(tiny, texts, CTX, once=True)
    assert (first.n_read, other.n_read) == (7, 0) and other.path == tmp_path / "b"
    assert first.pack == other.pack and not (tmp_path / "b").exists()
    assert [one.n_read for one in build_packs(tiny, texts, CTX)] == [0, 7]


def test_a_pack_that_a_context_writes_is_left_to_it(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(tiny, 1100)
    writer = tiny.context(CTX, store=kvarn.Disk(tmp_path / "a"))
    writer.prefill(ids[:1050])
    with pytest.raises(PackBusy, match="is writing to it"):
        build_pack(tiny, tmp_path / "a", ids, CTX)
    assert issubclass(PackBusy, PackError)
    slept = []

    def end(seconds: float) -> None:
        slept.append(seconds)
        writer.close()

    monkeypatch.setattr(building, "time", SimpleNamespace(sleep=end))
    ended = outcomes(tiny, {tmp_path / "a": ids, tmp_path / "b": ids[:9]})
    assert [*ended] == ["b", "a"] and len(slept) == 1
    assert (ended["a"].n_read, ended["b"].n_read) == (50, 9)


def test_a_pack_that_cannot_be_opened_does_not_stop_the_others(tiny: Model, tmp_path: Path) -> None:
    texts = {tmp_path / name: ids_of(tiny, 30) for name in ("a", "b")}
    build_pack(tiny, tmp_path / "a", texts[tmp_path / "a"], CTX)
    (tmp_path / "a/lock").unlink()
    (tmp_path / "a/lock").mkdir()
    ended = outcomes(tiny, texts)
    assert "cannot be opened: lock" in str(ended["a"].pack)
    assert ended["b"].n_read == 30


def test_what_was_read_counts_where_the_index_has_to_wait(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, tries = building.index_pack, []

    def busy_at_first(model: Model, path: Path, *options) -> PackInfo:
        tries.append(path)
        if len(tries) == 1:
            raise PackBusy(path)
        return index(model, path, *options)

    monkeypatch.setattr(building, "index_pack", busy_at_first)
    monkeypatch.setattr(building, "time", SimpleNamespace(sleep=lambda seconds: None))
    ended = outcomes(tiny, {tmp_path / "a": ids_of(tiny, 1100)}, attend=kvarn.Hash())["a"]
    assert ended.n_read == 1100 and ended.pack.indexes and len(tries) == 2


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "taken since"])
def test_a_text_is_left_for_later_while_its_pack_is_written(
    seen: bool, tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its document is read; one whose pack was taken a moment ago is not lost."""
    text, n_calls = "The mill stood by the river.", []
    build_pack(tiny, tmp_path / "wanted", text, CTX)
    writer = tiny.context(CTX, store=kvarn.Disk(tmp_path / "a"))
    if not seen:
        monkeypatch.setattr(building, "is_busy", lambda path: False)
    monkeypatch.setattr(building, "time", SimpleNamespace(sleep=lambda _: writer.close()))
    ended = outcomes(tiny, {tmp_path / "a": lambda: n_calls.append(1) or text})
    assert len(n_calls) == (1 if seen else 2)
    assert [*ended] == ["a"] and same(tiny, tmp_path / "a", tmp_path / "wanted")


def test_nobody_waits_while_a_text_can_be_read(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(tiny, 9)
    writer, slept = tiny.context(CTX, store=kvarn.Disk(tmp_path / "a")), []

    def end(*_: object) -> None:
        writer.close()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        end()

    monkeypatch.setattr(building, "time", SimpleNamespace(sleep=sleep))
    ended = outcomes(tiny, {tmp_path / "a": ids, tmp_path / "b": ids}, begin=lambda *_: end)
    assert [*ended] == ["b", "a"] and not slept


def test_tokens_read_before_an_error_are_counted(tiny: Model, tmp_path: Path) -> None:
    done: list[int] = []

    def tell(n: int, total: int) -> None:
        done.append(n)
        raise KvarnError("no space left")

    texts = {tmp_path / "a": ids_of(tiny, 2600)}
    ended = outcomes(tiny, texts, begin=lambda *_: tell)["a"]
    assert str(ended.pack) == "no space left"
    assert [ended.n_read] == done and 0 < ended.n_read < 2600


def test_a_method_without_an_index_leaves_none(tiny: Model, tmp_path: Path) -> None:
    ended = outcomes(tiny, {tmp_path / "a": ids_of(tiny, 30)}, attend=kvarn.Full())["a"]
    assert not isinstance(ended.pack, KvarnError) and not ended.pack.indexes
