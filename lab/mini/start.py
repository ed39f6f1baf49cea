"""Initial weights with an induction circuit, so that a new model can look back.

A model that starts from random weights spends most of a small training on a plateau where it learns
only the statistics of digits, until heads that read the previous token and heads that look for it
work together (Olsson et al. 2022, In-context learning and induction heads). Here both exist from
the beginning, weakly, and training turns them into what the tasks need:

- layer 0 (which has rope): query head d reads the token d + 1 places back and writes what it was
  into a subspace of its own, M_d;
- each layer without positions: KV head n looks for places where the last n + 1 tokens came before
  (the present one in M_0, the one before it, which M_0 holds here, in M_1, and so on), and adds
  what stands there to the residual stream. Where all layers have rope, every third does so, with
  the dimensions that rope turns slowest.
"""

import torch
from torch import Tensor

from .model import Block, Mini

SHARPNESS = 6.0
"""How much higher the logit of the wanted place is than those of its neighbours."""
MATCH = 1.3
"""Scale of queries and keys that compare contents with all dimensions of a head."""
HELD, RAISED = 2.0, 3.0
"""How much larger than an embedding layer 0 writes what came before, and a matching layer what it
found; a circuit of half this strength was lost in training where all layers have rope."""
FREQUENCIES = 8
"""The fastest pairs of the rotation, which tell neighbours apart."""
LOOK_EVERY = 3
"""If all layers have rope: one of this many looks for what came before."""
SLOW = 3 / 8
"""Where in a head's dimensions those pairs begin that compare what is far apart: at a rope_theta of
500,000 the first of them turns by half a radian in 70 tokens, the later ones in 2,000 and more."""


def look_back(model: Mini) -> None:
    """Writes the circuit into a new model."""
    c = model.config
    with torch.no_grad():
        embeddings = model.token_embd.weight
        common = _directions(c.n_embd, 1)[:, 0] * c.n_embd**0.5
        common -= common.mean()
        size = embeddings.std()
        embeddings += size * common
        content = _without(_directions(c.n_embd, c.head_dim), common)
        places = [_directions(c.n_embd, c.head_dim) for _ in range(c.n_heads)]
        _read_before(model, common, content, places, float(size))
        for layer, block in enumerate(model.blk):
            if not block.has_rope:
                _match(block, content, places, float(size), first=0)
            elif block.is_global and layer % LOOK_EVERY == LOOK_EVERY - 1:
                _match(block, content, places, float(size), first=round(SLOW * c.head_dim))


def _match(block: Block, content: Tensor, places: list[Tensor], size: float, first: int) -> None:
    """A layer's heads look for the last tokens; dimensions before `first` of queries and keys stay
    as they are: rope turns them too fast to compare what is far apart."""
    c = block.config
    n, held = c.head_dim - first, [content, *places]
    scale = MATCH * c.head_dim / n
    for head in range(c.n_heads):
        queries = _shared(held[: head * c.n_kv_heads // c.n_heads + 1], n)
        block.attn_q.weight[head * c.head_dim :][first : c.head_dim] = scale * queries.T
    for head in range(c.n_kv_heads):
        keys = _shared(held[1 : head + 2], n)
        block.attn_k.weight[head * c.head_dim :][first : c.head_dim] = scale * keys.T
    block.attn_v.weight.copy_(content.T.repeat(c.n_kv_heads, 1))
    block.attn_output.weight.copy_((RAISED * size * content).repeat(1, c.n_heads))


def _read_before(
    model: Mini, common: Tensor, content: Tensor, places: list[Tensor], size: float
) -> None:
    """Layer 0's heads: head d reads d + 1 places back, whatever stands there.

    All normed states share the direction `common`. Rope turns queries and keys along it into a
    function of their distance alone: sum over f of cos(theta_f (distance - d)).
    """
    c, block = model.config, model.blk[0]
    theta = c.rope_theta ** (-torch.arange(0, c.head_dim, 2) / c.head_dim)
    theta = theta[:FREQUENCIES]
    lead = float((1 - theta.cos()).sum())
    along = common / common.norm()
    strength = (SHARPNESS * c.head_dim**0.5 / lead) ** 0.5 / (c.n_embd / 2) ** 0.5
    query, key = block.attn_q.weight, block.attn_k.weight
    query.zero_()
    for head in range(c.n_kv_heads):
        rows = key[head * c.head_dim :][: 2 * FREQUENCIES]
        rows[0::2] = strength * along
        rows[1::2] = 0.0
    for head in range(c.n_heads):
        rows = query[head * c.head_dim :][: 2 * FREQUENCIES]
        angle = -theta * (head + 1)
        rows[0::2] = strength * angle.cos()[:, None] * along
        rows[1::2] = strength * angle.sin()[:, None] * along
    block.attn_v.weight.copy_(content.T.repeat(c.n_kv_heads, 1))
    block.attn_output.weight.copy_(HELD * size * torch.cat(places, 1))


def _shared(columns: list[Tensor], n: int) -> Tensor:
    """n columns: a run of the first matrix's, then the next run of the second matrix's, …"""
    bounds = torch.linspace(0, n, len(columns) + 1).long().tolist()
    runs = zip(columns, bounds, bounds[1:], strict=False)
    return torch.cat([c[:, first:last] for c, first, last in runs], 1)


def _directions(n: int, k: int) -> Tensor:
    """k random orthonormal columns of length n."""
    return torch.linalg.qr(torch.randn(n, k)).Q


def _without(columns: Tensor, direction: Tensor) -> Tensor:
    """The columns, each without its part along a direction."""
    unit = direction / direction.norm()
    return columns - unit[:, None] * (unit @ columns)
