"""Contexts that evict, kept on disk: they go on as if they had never stopped, or say why not."""

import random
import textwrap
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.keep import EvictingKeep
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import pack_info
from kvarn.runtime.store import PackError
from kvarn.runtime.store.disk import slots
from kvarn.runtime.store.disk.archive import export_pack
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.format import snapshot

from ...reading import ids_of
from .lives import live

N_CTX = 256
STREAMING, HASHEVICT = kvarn.Streaming(40), kvarn.HashEvict(40)
FEW, MANY = 10, 150


@pytest.fixture
def saved(tiny: Model, tmp_path: Path) -> Path:
    """A folder with a context of 100 tokens, of which HASHEVICT has kept 40."""
    path = tmp_path / "evicted"
    with tiny.context(N_CTX, keep=HASHEVICT, store=kvarn.Disk(path)) as context:
        context.prefill(ids_of(tiny, 100))
    return path


@pytest.mark.parametrize("keep", [STREAMING, HASHEVICT], ids=lambda keep: keep.name)
@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_it_goes_on_bit_for_bit(tiny: Model, tmp_path: Path, keep: EvictingKeep, kind: str) -> None:
    ids, disk = ids_of(tiny, 130), kvarn.Disk(tmp_path / "pack", kind, kind)
    memory = tiny.context(N_CTX, keep=keep, store=kvarn.Ram(kind, kind))
    for first, stop in ((0, 20), (20, 90), (90, 91), (91, 130)):  # before, while and after it fills
        with tiny.context(N_CTX, keep=keep, store=disk) as context:
            assert context.tokens == ids[:first]
            if first:
                np.testing.assert_array_equal(context.logits, memory.logits)
            read = [context.prefill, lambda x, c=context: c.decode(x[0])][stop - first == 1]
            again = [memory.prefill, lambda x: memory.decode(x[0])][stop - first == 1]
            np.testing.assert_array_equal(read(ids[first:stop]), again(ids[first:stop]))
            for layer in range(tiny.config.n_layers):
                np.testing.assert_array_equal(
                    context.kept_positions(layer), memory.kept_positions(layer)
                )


def test_readers_leave_it_as_it_is(tiny: Model, saved: Path) -> None:
    before = (saved / "snapshot").read_bytes()
    store = kvarn.Disk(saved, read_only=True)
    with tiny.context(N_CTX, keep=HASHEVICT, store=store) as context:
        context.prefill(ids_of(tiny, 30))
        assert len(context.tokens) == 130
    assert (saved / "snapshot").read_bytes() == before


def test_its_facts_are_told(saved: Path) -> None:
    info = pack_info(saved)
    assert (info.n_tokens, info.indexes) == (100, ["positions", "signature-0"])
    assert verify(saved) == []


def test_saving_takes_a_small_part_of_the_time(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "PATIENCE", 1e9)
    written, write = [], snapshot.write
    monkeypatch.setattr(
        snapshot,
        "write",
        lambda folder, state: (written.append(len(state.tokens)), write(folder, state)),
    )
    with tiny.context(4096, keep=STREAMING, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids_of(tiny, 1200))
    assert written == [1024, 1200]


def test_what_does_not_fit_is_refused_with_both_sides(
    tiny: Model, saved: Path, tmp_path: Path
) -> None:
    for keep, words in (
        (
            STREAMING,
            r"made to keep at most 40 tokens \(keep hashevict bits=16.*asked for is at most",
        ),
        (kvarn.HashEvict(41), r"at most 40 .* at most 41 .*budget of keep"),
        (kvarn.HashEvict(40, seed=1), r"seed=0 .* seed=1 "),
        (kvarn.KeepAll(), r"at most 40 tokens .* asked for is all tokens"),
    ):
        with pytest.raises(PackError, match=words):
            tiny.context(N_CTX, keep=keep, store=kvarn.Disk(saved))
    with tiny.context(N_CTX, store=kvarn.Disk(tmp_path / "plain")) as context:
        context.prefill(ids_of(tiny, 20))
    with pytest.raises(PackError, match="keep all tokens, asked for is at most 40"):
        tiny.context(N_CTX, keep=HASHEVICT, store=kvarn.Disk(tmp_path / "plain"))
    with pytest.raises(PackError, match="cannot begin with another pack"):
        child = kvarn.Disk(tmp_path / "child", parent=tmp_path / "plain")
        tiny.context(N_CTX, keep=HASHEVICT, store=child)
    with pytest.raises(PackError, match="copy that"):
        export_pack(saved, tmp_path / "exported")


def test_a_flipped_byte_is_found(tiny: Model, saved: Path) -> None:
    whole = (saved / "snapshot").read_bytes()
    facts_end = whole.index(b"\0" * 64)
    source = random.Random(0)
    for _ in range(40):
        place = source.choice((source.randrange(facts_end), source.randrange(4096, len(whole))))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << source.randrange(8)
        (saved / "snapshot").write_bytes(damaged)
        assert len(verify(saved)) == 1
        with pytest.raises(PackError, match="snapshot"):
            tiny.context(N_CTX, keep=HASHEVICT, store=kvarn.Disk(saved))
    for size in (0, 100, 5000, len(whole) - 1):
        (saved / "snapshot").write_bytes(whole[:size])
        assert len(verify(saved)) == 1


SAVES = textwrap.dedent(
    """
    import sys
    from functools import partial
    from pathlib import Path
    from kvarn.runtime.store.disk.format import snapshot
    from tests.runtime.store.disk.lives import calls_of, tell_killed

    folder = Path(sys.argv[1])

    def save(number):
        parts = [memoryview(bytes([number % 256]) * (number * 1000 + i)) for i in range(4)]
        state = snapshot.Snapshot([number] * number, None, number, {"positions": 4}, parts)
        snapshot.write(folder, state)

    save(1), save(2)  # the first ones also compile and import
    calls, number = calls_of(partial(save, 3)), 3
    for share in map(float, sys.argv[2:]):
        tell_killed(partial(save, number + 1), 1 + int(share * calls))
        facts = snapshot.read_facts(folder)
        rest = memoryview(bytearray(facts.n_bytes - 4 * facts.n_tokens))
        snapshot.read(folder, facts, [rest])
        assert facts.n_tokens in (number, number + 1), (facts, number)
        number = facts.n_tokens
    """
)


def saves_and_dies(folder: Path, lives: int, seed: int) -> None:
    """Each life writes the next snapshot and is killed: the last one or its own is there, whole."""
    live(SAVES, folder, lives=lives, seed=seed)


def test_a_killed_save_leaves_a_whole_snapshot(tmp_path: Path) -> None:
    saves_and_dies(tmp_path, FEW, 0)


@pytest.mark.slow
def test_many_killed_saves_leave_a_whole_snapshot(tmp_path: Path) -> None:
    saves_and_dies(tmp_path, MANY, 1000)
