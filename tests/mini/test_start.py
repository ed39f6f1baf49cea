"""A new model looks back, if weakly, before it has learned anything."""

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is only needed to train: pip install kvarn[train]"
)

from kvarn.mini.model import Mini, MiniConfig, rope, rope_table  # noqa: E402
from kvarn.mini.start import look_back  # noqa: E402

CONFIG = MiniConfig(n_vocab=500, n_layers=4, n_embd=192, n_heads=3, n_ff=64)


def test_the_first_layer_s_heads_read_one_two_and_three_places_back() -> None:
    torch.manual_seed(0)
    model = Mini(CONFIG)
    look_back(model)
    block, x = model.blk[0], model.token_embd(torch.randint(0, 500, (1, 60)))
    h = block.attn_norm(x)
    cos, sin = rope_table(60, 64, CONFIG.rope_theta)
    q = rope(block.attn_q(h).view(1, 60, 3, 64).transpose(1, 2), cos, sin)
    k = rope(block.attn_k(h).view(1, 60, 1, 64).transpose(1, 2), cos, sin)
    scores = (q @ k.mT / 8)[0]
    for head in range(3):
        back = [i - scores[head, i, : i + 1].argmax().item() for i in range(10, 60)]
        assert back.count(head + 1) >= 45


def test_a_token_seen_before_brings_back_what_followed_it() -> None:
    torch.manual_seed(0)
    model = Mini(CONFIG)
    plain = Mini(CONFIG)
    look_back(model)
    first = torch.stack([torch.randperm(500)[:150] for _ in range(4)])
    ids = torch.cat([first, first], 1)  # 150 places apart: beyond the window of 128
    ranks = {}
    for name, tried in (("with", model), ("without", plain)):
        with torch.no_grad():
            logits = tried(ids)[:, 150:-1]
        wanted = logits.gather(2, ids[:, 151:, None])
        ranks[name] = (logits > wanted).float().sum(-1).median().item()
    assert ranks["without"] > 150  # of 500
    assert ranks["with"] < 0.7 * ranks["without"]
