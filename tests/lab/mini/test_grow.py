"""A model grown from a smaller one: what is exact stays, what is lost is little."""

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is only needed to train: pip install torch")

from kvarn.runtime.loading.default_model import default_model_path  # noqa: E402
from lab.mini import grow as growing  # noqa: E402
from lab.mini.export import write_gguf  # noqa: E402
from lab.mini.grow import PLACES, grow, read_trained  # noqa: E402
from lab.mini.model import Mini, MiniConfig  # noqa: E402
from lab.mini.recipes import RECIPES  # noqa: E402
from lab.mini.texts.data import BOS, EOS, new_tokenizer, token_id  # noqa: E402

SMALL = MiniConfig(
    n_vocab=300, n_layers=8, n_embd=96, n_heads=3, n_kv_heads=3, head_dim=32, n_ff=64, window=8
)
LARGE = replace(SMALL, n_layers=16, n_embd=128, n_heads=4, n_kv_heads=2)
IDS = torch.arange(2, 60)[None] * 5 % 300


def trained(seed: int = 0) -> Mini:
    """A model in which every matrix counts."""
    torch.manual_seed(seed)
    model = Mini(SMALL)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


def grown(old: Mini) -> Mini:
    torch.manual_seed(1)
    model = Mini(LARGE)
    grow(model, old.state_dict())
    return model


def deviation(a: Mini, b: Mini) -> float:
    with torch.no_grad():
        x, y = a(IDS), b(IDS)
    return float((x - y).norm() / (x - x.mean()).norm())


def test_a_grown_model_computes_what_the_old_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for LayerNorm's mean, where no KV heads have to be merged in the windowed layers, and a
    global layer's last head, which has moved behind the others, writes nothing."""
    monkeypatch.setattr(growing, "NOISE", 0.0)
    old = trained()
    with torch.no_grad():
        for layer in (0, 1, 2, 4, 5, 6):
            for name in ("attn_k", "attn_v"):
                weight = getattr(old.blk[layer], name).weight
                weight[2 * SMALL.head_dim :] = weight[SMALL.head_dim : 2 * SMALL.head_dim]
        for layer in (3, 7):
            old.blk[layer].attn_output.weight[:, 2 * SMALL.head_dim :] = 0
    plain = trained()
    # 0.12 on random weights, whose mean is no smaller than their size; merged heads give 0.95.
    assert deviation(old, grown(old)) < 0.2
    assert deviation(plain, grown(plain)) > 0.5


def test_noise_sets_copies_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    new = grown(trained())
    first, second = new.blk[0].attn_q.weight.view(4, 32, 128)[:2]
    assert not torch.equal(first, second)
    assert torch.corrcoef(torch.stack([first.ravel(), second.ravel()]))[0, 1] > 0.95


def test_four_layers_see_everything_and_query_heads_share_kv_heads() -> None:
    config = MiniConfig(**RECIPES["gqa"].shape)
    assert sum(config.is_global(i) for i in range(config.n_layers)) == 4
    assert config.n_heads // config.n_kv_heads == 2
    places = [place for i, place in enumerate(PLACES) if config.is_global(i)]
    assert [place.layer for place in places] == [3, 3, 7, 7]
    for pair in (places[:2], places[2:]):
        shares = dict.fromkeys(range(3), 0.0)
        for head, share in (one for place in pair for one in place.heads):
            shares[head] += share
        assert shares == {0: 1.0, 1: 1.0, 2: 1.0}


def test_a_written_model_is_read_as_it_was(tmp_path: Path) -> None:
    tokenizer = new_tokenizer(["It was cold there, 12 of them. So it was. " * 40], 300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = trained()
    write_gguf(tmp_path / "m.gguf", SMALL, model.state_dict(), tmp_path / "tokenizer.json")
    found = read_trained(tmp_path / "m.gguf")
    for name, weight in model.state_dict().items():
        off = (found.weights[name] - weight).abs().max()
        assert off <= weight.abs().max() / 127, name  # half a step of Q8_0 and its f16 scale
    for text in ("It was 12 of them.", "\ncold  there", "å"):
        assert found.tokenizer.encode(text).ids == tokenizer.encode(text).ids


def test_the_shipped_model_can_be_grown() -> None:
    found = read_trained(default_model_path())
    assert (token_id(found.tokenizer, BOS), token_id(found.tokenizer, EOS)) == (0, 1)
    model = Mini(MiniConfig(**RECIPES["gqa"].shape))
    grow(model, found.weights)
    ids = found.tokenizer.encode("He looked at the old house, and").ids
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0, -1]
    assert torch.isfinite(logits).all() and float(logits.std()) > 0.5
