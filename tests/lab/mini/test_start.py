"""A new model looks back, if weakly, before it has learned anything."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is only needed to train: pip install torch")

from lab.mini.model import Mini, MiniConfig, rope, rope_table  # noqa: E402
from lab.mini.start import look_back  # noqa: E402

CONFIG = MiniConfig(n_vocab=500, n_layers=4, n_embd=192, n_heads=3, n_ff=64)
ROTATED = replace(CONFIG, architecture="llama", n_layers=3, rope_theta=500_000.0)


def test_the_first_layer_s_heads_read_one_two_and_three_places_back() -> None:
    torch.manual_seed(0)
    model = Mini(CONFIG)
    look_back(model)
    block, x = model.blk[0], model.token_embd(torch.randint(0, 500, (1, 60)))
    h = block.attn_norm(x)
    cos, sin = rope_table(60, 64, CONFIG.rope_theta)
    q = rope(block.attn_q(h).view(1, 60, 3, 64).transpose(1, 2), cos, sin)
    k = rope(block.attn_k(h).view(1, 60, 3, 64).transpose(1, 2), cos, sin)
    scores = (q @ k.mT / 8)[0]
    for head in range(3):
        back = [i - scores[head, i, : i + 1].argmax().item() for i in range(10, 60)]
        assert back.count(head + 1) >= 45


@pytest.mark.parametrize("config", [CONFIG, ROTATED], ids=["cohere2", "llama"])
def test_a_token_seen_before_brings_back_what_followed_it(config: MiniConfig) -> None:
    torch.manual_seed(0)
    model = Mini(config)
    plain = Mini(config)
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
    assert ranks["with"] < 0.15 * ranks["without"]  # at half the strength 0.3 to 0.5


def test_of_two_places_after_a_token_the_second_head_looks_at_the_longer_match() -> None:
    torch.manual_seed(0)
    model = Mini(CONFIG)
    look_back(model)
    told = torch.randperm(500)[:300].view(2, 50, 3)
    told[1, :, 1] = told[0, :, 1]  # every second word of a triple stands twice
    right = 0
    for i in range(50):
        x = model.token_embd(torch.cat([told.flatten(), told[0, i, :2]])[None])
        table = rope_table(x.shape[1], 64, CONFIG.rope_theta)
        for block in model.blk[:3]:
            x = block(x, *table)
        h = model.blk[3].attn_norm(x)[0]
        keys, query = model.blk[3].attn_k(h)[:, 64:128], model.blk[3].attn_q(h[-1])[64:128]
        right += int(keys[3 * i + 2] @ query > keys[150 + 3 * i + 2] @ query)
    assert right >= 38  # of 50
