"""Contexts of a model with windows compute what they would if all layers held all tokens."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvarn.runtime.context import Context
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk, Ram, windowed
from kvarn.runtime.store.disk import factory
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.ram import factory as ram

from ..reading import ids_of

N_CTX, N = 8192, 6500
PLACES = (6400, 4000, 700)
"""Where contexts are cut, one after the other."""


@pytest.fixture(scope="module")
def mini() -> Model:
    return load(default_model_path())


@pytest.fixture(autouse=True)
def dense_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed, "SPACING", 2)


@pytest.fixture(scope="module")
def whole(mini: Model) -> dict[int, np.ndarray]:
    """Logits after some numbers of tokens, of a context whose layers hold all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ram, "windows_of", lambda config: ())
        context, ids = mini.context(N_CTX), ids_of(mini, N)
        found = {}
        for place in (*sorted(PLACES), N):
            found[place] = context.prefill(ids[len(context.tokens) : place]).copy()
    assert context.store.first(0) == 0
    return found


@pytest.fixture(params=["ram", "disk", "read-only"])
def context(mini: Model, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Context]:
    """A context that has read the tokens; of a pack, one that was opened with them."""
    ids = ids_of(mini, N)
    if request.param == "ram":
        one = mini.context(N_CTX)
        one.prefill(ids)
    else:
        with mini.context(N_CTX, store=Disk(tmp_path / "pack")) as first:
            first.prefill(ids)
        disk = Disk(tmp_path / "pack", read_only=request.param == "read-only")
        one = mini.context(N_CTX, store=disk)
        assert one.stats.prefilled_tokens == 0
    yield one
    one.close()
    if request.param != "ram":
        assert verify(tmp_path / "pack") == []


def test_logits_are_those_of_whole_layers_bit_for_bit(
    mini: Model, context: Context, whole: dict[int, np.ndarray]
) -> None:
    ids = ids_of(mini, N)
    np.testing.assert_array_equal(context.logits, whole[N])
    assert context.store.first(0) > 0
    for place in PLACES:
        kept = context.cut_to_shared(ids[:place])
        assert place - 2048 < kept <= place
        if kept < place:
            np.testing.assert_array_equal(context.prefill(ids[kept:place]), whole[place])
    for place in (*sorted(PLACES)[1:], N):
        found = context.prefill(ids[len(context.tokens) : place])
        np.testing.assert_array_equal(found, whole[place])


def test_truncate_reads_what_is_needed_again(
    mini: Model, context: Context, whole: dict[int, np.ndarray]
) -> None:
    ids = ids_of(mini, N)
    context.truncate(4000)
    assert context.tokens == ids[:4000]
    np.testing.assert_array_equal(context.prefill(ids[4000:]), whole[N])


def test_truncate_reads_generated_tokens_again_as_such(
    mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels of a prompt would give them other bits."""
    ids = ids_of(mini, N)

    def read(context: Context, n: int) -> Context:
        context.prefill(ids[:4200])
        for token in ids[4200:4240]:
            context.decode(token)
        context.prefill(ids[4240:n])
        return context

    cut = read(mini.context(N_CTX), N)
    assert not cut.store.reaches(4800)
    cut.truncate(4800)
    monkeypatch.setattr(ram, "windows_of", lambda config: ())
    whole = read(mini.context(N_CTX), 4800)
    assert cut.tokens == whole.tokens
    np.testing.assert_array_equal(cut.logits, whole.logits)


def test_a_mark_is_returned_to_bit_for_bit_from_anywhere(mini: Model, context: Context) -> None:
    """Also where it stands after tokens that were generated, which a prompt's kernels would not
    give again."""
    ids = ids_of(mini, 40)
    for token in ids:
        context.decode(token)
    mark, wanted = context.mark(), context.logits.copy()
    after = [context.decode(token).copy() for token in ids[:3]]
    for n in (200, 1500):
        context.prefill(ids_of(mini, n, seed=n))
        context.return_to(mark)
        np.testing.assert_array_equal(context.logits, wanted)
        found = [context.decode(token).copy() for token in ids[:3]]
        np.testing.assert_array_equal(found, after)


def test_a_pack_of_before_is_opened_and_gone_on_with(
    mini: Model, tmp_path: Path, whole: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores all layers whole."""
    ids, path = ids_of(mini, N), tmp_path / "pack"
    with monkeypatch.context() as patch:
        patch.setattr(factory, "windows_of", lambda config: ())
        with mini.context(N_CTX, store=Disk(path)) as context:
            context.prefill(ids[:4000])
    assert PackFolder(path).manifest.windows == ()
    with mini.context(N_CTX, store=Disk(path)) as context:
        np.testing.assert_array_equal(context.logits, whole[4000])
        np.testing.assert_array_equal(context.prefill(ids[4000:]), whole[N])
        assert context.cut_back(700) == 700
    assert len(list(path.glob("layer-*.kv"))) == mini.config.n_layers
    assert not (path / "checkpoints").exists()
    assert verify(path) == []


def test_a_child_of_a_pack_goes_on_bit_for_bit(
    mini: Model, tmp_path: Path, whole: dict[int, np.ndarray]
) -> None:
    ids = ids_of(mini, N)
    with mini.context(N_CTX, store=Disk(tmp_path / "pack")) as context:
        context.prefill(ids[:4000])
    child = Disk(tmp_path / "child", parent=tmp_path / "pack")
    with mini.context(N_CTX, store=child) as context:
        np.testing.assert_array_equal(context.logits, whole[4000])
        np.testing.assert_array_equal(context.prefill(ids[4000:]), whole[N])
    with mini.context(N_CTX, store=Disk(tmp_path / "child")) as context:
        np.testing.assert_array_equal(context.logits, whole[N])
        kept = context.cut_to_shared(ids[:700])  # within the parent
        np.testing.assert_array_equal(context.prefill(ids[kept:700]), whole[700])
    assert verify(tmp_path / "child") == []


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_memory_is_what_was_said_before(mini: Model, kind: str) -> None:
    context = mini.context(N_CTX, store=Ram(kind, kind))
    for place in range(512, N, 512):
        context.prefill(ids_of(mini, 512))
        assert context.n_bytes <= context.store.bytes_for(place)  # type: ignore[attr-defined]
    config, store = mini.config, context.store
    n_whole = sum(layer.window is None for layer in config.kv_layers)
    segment = store.layout.segment_bytes(config.n_kv_heads)
    assert context.n_bytes < segment * (7 * n_whole + 4 * (config.n_layers - n_whole))
