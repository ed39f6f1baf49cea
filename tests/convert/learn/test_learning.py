"""Networks, losses and the whole of learning; needs torch."""

import json
import signal
from itertools import count
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is only needed to learn: pip install torch")

from kvarn import cli  # noqa: E402
from kvarn.commands.terminal.interrupt import Interruptible  # noqa: E402
from kvarn.convert.learn.learning import Learning, table  # noqa: E402
from kvarn.convert.learn.networks import (  # noqa: E402
    ALPHA,
    HeadNetworks,
    LayerStudent,
    StraightSign,
    cross_entropy,
    softmax_loss,
)
from kvarn.convert.learn.settings import LearnError, Settings  # noqa: E402
from kvarn.convert.learn.student import _dense, _label_share  # noqa: E402
from kvarn.convert.learn.texts import Texts  # noqa: E402
from kvarn.ops.reference.select import network_reference  # noqa: E402
from kvarn.runtime.attend.encoders.networks import LearnedLayer, _networks  # noqa: E402
from kvarn.runtime.attend.encoders.sidecar import sidecar_path, widths_of  # noqa: E402
from kvarn.runtime.loading.default_model import default_model_path  # noqa: E402
from kvarn.runtime.loading.load import load  # noqa: E402
from kvarn.runtime.model import Model  # noqa: E402
from kvarn.runtime.store import Ram  # noqa: E402

SHORT = Settings(length=1024, tokens=2048, labels=16, queries=4, negatives=200)


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of a small grammar, never the same twice in a row."""
    rng, words = np.random.default_rng(0), ["mill", "river", "stone", "key", "bridge", "well"]
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text(
        "".join(
            f"The {rng.choice(words)} that stood by the {rng.choice(words)} had no "
            f"{rng.choice(words)} in the year {rng.integers(1000, 2000)}. "
            for _ in range(600)
        )
    )
    return path


@pytest.mark.parametrize("hidden", [0, 128])
@pytest.mark.parametrize(("width", "bits"), [(24, 32), (64, 64), (80, 32), (256, 64)])
def test_networks_begin_as_the_maps_that_they_are_given(width: int, bits: int, hidden: int) -> None:
    rng = torch.Generator().manual_seed(0)
    maps, bias = torch.randn(2, width, bits, generator=rng), torch.randn(2, bits, generator=rng)
    networks = HeadNetworks(2, width, hidden, bits)
    networks.begin(maps, bias)
    x = torch.randn(2, 300, width, generator=rng)
    y = networks(x).detach()
    torch.testing.assert_close(y, x @ maps + bias[:, None], atol=1e-3 * y.abs().max(), rtol=0)
    networks.normalise(x)
    size = networks(x).square().mean((1, 2)).sqrt()
    torch.testing.assert_close(size, torch.ones(2))


@pytest.mark.parametrize("hidden", [0, 128])
def test_a_file_holds_the_networks_that_were_learned(hidden: int) -> None:
    """As the kernels' reference reads them, up to half precision."""
    networks = HeadNetworks(3, 24, hidden, 32)
    for bias in networks.biases:
        bias.data.normal_()
    x = torch.randn(3, 50, 24)
    for head, network in enumerate(_networks(_dense(networks))):
        assert network.widths == widths_of(24, hidden, 32)
        got = network_reference(x[head].numpy(), network.weights, network.widths)
        want = networks(x)[head].detach().numpy()
        np.testing.assert_allclose(got, want, atol=5e-3 * np.abs(want).max())


def test_bce_is_the_papers_as_to_logits() -> None:
    """tanh of both sides, neither scaled nor shifted."""
    student = LayerStudent((4, 2), 24, 0, 32)
    q, keys = torch.randn(4, 3, 24), torch.randn(2, 7, 24)
    a, b = torch.tanh(student.q(q)), torch.tanh(student.k(keys))
    want = torch.stack([a[h] @ b[h // 2].T for h in range(4)]).reshape(2, 2, 3, 7)
    torch.testing.assert_close(student(q, keys, soft=True), want)


def test_straight_sign_is_between_sign_and_tanh_with_tanhs_gradient() -> None:
    y = torch.tensor([-2.0, -0.1, 0.3, 4.0], requires_grad=True)
    out = StraightSign.apply(y)
    torch.testing.assert_close(out, 0.5 * (y.sign() + y.tanh()))
    out.sum().backward()
    torch.testing.assert_close(y.grad, 1 - y.detach().tanh() ** 2)


def test_losses_are_their_formulas_and_weights_stand_for_copies() -> None:
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 2, 3, 7, generator=rng, dtype=torch.float64)
    positive = torch.zeros(2, 2, 3, 7, dtype=torch.bool)
    positive[..., :2] = True
    allowed = torch.ones_like(positive)
    allowed[..., 5] = False
    once = torch.ones(2, 7, dtype=torch.float64)
    p, e = positive.numpy(), np.exp(logits.numpy())
    others = (e * (allowed.numpy() & ~p)).sum(-1, keepdims=True)
    want = -np.log(e / (e + others))[p].mean()
    assert float(softmax_loss(logits, positive, allowed, once)) == pytest.approx(want)
    sigmoid = 1 / (1 + np.exp(-logits.numpy()))
    costs = np.where(p, -ALPHA * np.log(sigmoid), -np.log(1 - sigmoid) * allowed.numpy())
    want = costs.sum() / (ALPHA * p.sum() + (allowed.numpy() & ~p).sum())
    assert float(cross_entropy(logits, positive, allowed, once)) == pytest.approx(want)
    weight = once.clone()
    weight[:, 6] = 3
    again = [torch.cat([x, x[..., 6:], x[..., 6:]], -1) for x in (logits, positive, allowed)]
    for loss in (softmax_loss, cross_entropy):
        copied = loss(*again, torch.ones(2, 9, dtype=torch.float64))
        torch.testing.assert_close(loss(logits, positive, allowed, weight), copied)


def test_label_share_counts_labels_in_the_best_hundredth_of_what_the_keys_stand_for() -> None:
    logits = torch.tensor([[[[5.0, 4.0, 3.0, 2.0, 1.0]]]])
    positive = torch.tensor([[[[True, False, True, False, True]]]])
    weight = torch.tensor([[1.0, 1.0, 1.0, 997.0, 1.0]])
    for candidates, share in ((100, 1 / 3), (300, 2 / 3), (1000, 2 / 3), (200_000, 1)):
        measured = _label_share(
            logits, positive, torch.ones_like(positive), weight, torch.tensor([candidates])
        )
        assert measured == pytest.approx(share)


def learning(model: Model, prose: Path, checkpoint: Path, settings: Settings = SHORT) -> Learning:
    texts = Texts([prose], model.tokenizer, settings.length, settings.seed)
    return Learning(model, texts, settings, Ram(), checkpoint)


class StoppedHere(Exception):
    pass


def stopping_after(n: int):
    calls = count(1)

    def progress(_) -> None:
        if next(calls) == n:
            raise StoppedHere

    return progress


def test_going_on_gives_the_bits_of_never_having_stopped(
    tiny: Model, prose: Path, tmp_path: Path
) -> None:
    whole = learning(tiny, prose, tmp_path / "a")
    whole.run(lambda _: None)
    for stop in (1, 3, 5):  # two chunks are read before learning begins
        first = learning(tiny, prose, tmp_path / f"b{stop}")
        with pytest.raises(StoppedHere):
            first.run(stopping_after(stop))
        first.save()
        second = learning(tiny, prose, tmp_path / f"b{stop}")
        assert second.done == max(0, stop - 2)
        second.run(lambda _: None)
        assert second.learned.digest == whole.learned.digest != first.learned.digest


def test_the_time_that_is_left_is_that_of_chunks_and_steps_so_far(
    tiny: Model, prose: Path, tmp_path: Path
) -> None:
    one, told = learning(tiny, prose, tmp_path / "a"), []
    one.run(lambda _: told.append(one.seconds_left))
    assert told[:2] == [None, None] and len(told) == 6
    assert all(seconds > 0 for seconds in told[3:])  # after the first chunk with labels
    reading = np.mean(one._reading_seconds[:2])
    assert told[-1] == pytest.approx(2 * one._texts.n_held_out * reading)


def test_a_checkpoint_of_something_else_is_refused(
    tiny: Model, prose: Path, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    learning(tiny, prose, path).save()
    other = Settings(length=1024, tokens=2048, labels=16, queries=4, negatives=200, seed=1)
    with pytest.raises(LearnError, match=r"begun with seed 0 and this is seed 1.*remove it"):
        learning(tiny, prose, path, other)
    path.write_bytes(b"something else")
    with pytest.raises(LearnError, match="not a checkpoint of `kvarn learn`"):
        learning(tiny, prose, path)


@pytest.mark.parametrize("loss", ["softmax", "bce"])
def test_learned_signatures_find_more_than_simhash(prose: Path, tmp_path: Path, loss: str) -> None:
    """On text that was held out, in every global layer of the default model."""
    settings = Settings(length=2048, tokens=4 * 2048, steps=2, loss=loss, rate=3e-3)
    model = load(default_model_path())
    one = learning(model, prose, tmp_path / "checkpoint", settings)
    one.run(lambda _: None)
    rows = table(one.recalls(lambda *_: None))
    assert {row["layer"] for row in rows} == {3, 7}
    for layer in (3, 7):
        measured = {row["method"]: row["recall@2%"] for row in rows if row["layer"] == layer}
        assert measured["learned"] > measured["simhash"] + 0.03
    assert isinstance(one.learned.layers[3], LearnedLayer)


def test_the_command_stops_goes_on_and_hash_takes_what_it_wrote(
    tiny_path: Path, prose: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(tiny_path.read_bytes())
    arguments = ["learn", str(model), "--text", str(prose), "--length", "1024"]
    arguments += ["--tokens", "2048", "--json"]
    checkpoint = tmp_path / "tiny.hash.gguf.checkpoint"
    progress = Interruptible.progress

    def interrupted(self, done: int, total: int) -> None:
        signal.raise_signal(signal.SIGINT)
        progress(self, done, total)

    with monkeypatch.context() as patch:
        patch.setattr(Interruptible, "progress", interrupted)
        assert cli.main(arguments) == 130
    assert "run the same command to resume" in capsys.readouterr().err and checkpoint.exists()
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "4 chunks, contexts of" in err and " to go, by the first context" in err
    assert not checkpoint.exists()
    result = json.loads(out)
    assert result["file"] == str(sidecar_path(model))
    methods = [row["method"] for row in result["recall"] if row["layer"] == 1]
    assert methods == ["learned", "learned, rerank 4", "simhash", "sketch, 4 bytes"]
    assert load(model).encoders.bits == 64
    assert cli.main(["run", "-m", str(model), "-p", "The mill", "-n", "2", "--method", "hash"]) == 0
    assert "SimHash" not in capsys.readouterr().err
