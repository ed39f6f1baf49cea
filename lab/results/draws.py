"""Why MagicPIG loses on a model, and what would mend it, head by head over packs.

    kvarn perplexity -m MODEL -f TEXT… --ctx 16384 --decode 256 --work PACKS
    python -m lab.results.draws --model MODEL --packs PACKS --ctx 16384 --text TEXT… [--rows FILE]

Each text goes on from its pack with its own next tokens, every layer exact. At each --every-th of
these, each query head's attention is estimated in NumPy from its query and all stored keys and
values. m is what the head draws with these tables; all other estimates read as many. Prints two
tables of means over heads and tokens:

1. Draws. W: softmax weight beyond sinks and window. cos: standard deviation of the cosines of the
   query and the keys k less their centre c; raw: mean cosine without one. slope: of the logits by
   the cosine, b = |q| |k - c| scale; bits: pi b / 4, those with which log u would rise as fast at
   cosine 0 (u ~ p^2K). reach: share of W that is drawn. one: largest share of the estimated sum of
   weights that a single draw has. Z: root mean square of that sum, less 1. bias: of the ratio, less
   what the draws of a few seeds leave by chance. alone: the error if each key was drawn by planes
   of its own; basis: the same in another basis of queries and keys (`balanced`), which keeps their
   products; its cosines and the share that it draws beside. early, none: the error with the mean
   of the first 16th of the keys as centre, and with none. group: tokens that the KV head reads, by
   those that one head draws.
2. Errors ‖o - o_full‖ / ‖o_full‖. `means` counts what was not read by blocks of 32 similar keys;
   beside draws, as control variate: blocks whole, and draws of the differences from them. `optimal`
   draws with probabilities min(1, c w |v - o|), which nobody knows without reading all.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvarn.evals.prediction.compare import Passage, pack_name, passages_of
from kvarn.ops.arrays import F32, F64
from kvarn.runtime.attend import TopK
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk
from kvarn.system.reading import read_text
from kvarn.system.terminal import show

from .estimators import capped, drawn_probability, oracle_sample
from .heads import Head, KeyHead, cosines, head_of
from .shadow import Shadow, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]

LONG_WINDOW = 256
TOPK = TopK("2%", tail="means", budget_unit="query-head")
_TRIES = 4
"""Of draws by probabilities, for a mean error."""


class Study:
    """Rows of figures of one text: by layer, head, token and tables."""

    def __init__(self, tables: Sequence[tuple[int, int]], seeds: int, layers: set[int]) -> None:
        self.tables, self.seeds, self.layers = tables, seeds, layers
        self.rows: list[dict[str, Any]] = []
        self._keys: dict[tuple[int, int], KeyHead] = {}
        self._rng = np.random.default_rng(5)

    def __call__(self, step: Step) -> None:
        layer, config = step.layer.index, step.layer.config
        if self.layers and layer not in self.layers:
            return
        group = len(step.q) // step.keys.shape[1]
        for j in range(step.keys.shape[1]):
            keys, values = step.keys[:, j], step.values[:, j]
            known = self._keys.get((layer, j))
            if known is None:  # keys of later tokens are in the window, or draw none
                known = self._keys[layer, j] = KeyHead(keys, values, self.tables, self.seeds)
            for shape in self.tables:
                drawn: list[Bools] = []
                for h in range(j * group, (j + 1) * group):
                    name = "{}x{}".format(*shape)
                    row: dict[str, Any] = {"layer": layer, "head": h, "tables": name}
                    head = head_of(step.q[h], keys, values, known, config.attention_scale)
                    row |= self._draws(head, step.q[h], keys, shape, known, drawn)
                    slope = np.linalg.norm(step.q[h]) * config.attention_scale
                    slope *= np.linalg.norm(keys - known.centre, axis=1).mean()
                    row |= {"slope": float(slope), "bits": float(np.pi / 4 * slope)}
                    row |= self._estimates(head, shape, row["m"] * len(keys))
                    exact, topk = step.exact[h].astype(np.float64), step.found[h]
                    off = np.linalg.norm(topk - exact) / np.linalg.norm(exact)
                    row["`topk` 2%, means, own budgets"] = float(off)
                    self.rows.append(row)
                read = np.mean([one.sum() for one in drawn])
                for row in self.rows[-group:]:
                    row["group"] = float(np.logical_or.reduce(drawn).sum() / max(read, 1))

    def _draws(
        self, head: Head, q: F32, keys: F32, shape: tuple[int, int], known: KeyHead,
        drawn: list[Bools],
    ) -> dict[str, Any]:  # fmt: skip
        """The first table's figures of a head; adds what it draws with the first seed."""
        always, between = head.always(), ~head.always()
        u = np.where(always, 1.0, drawn_probability(head.cosine, *shape))
        outs, sums, one, errors = [], [], [], defaultdict(list)
        for name in ("", "early", "none"):
            for hashing, codes, centre in known.codes[shape, name]:
                n = len(codes)
                hits = np.zeros(len(keys), np.bool_)
                hits[:n] = (codes == hashing.codes(q[None])).sum(1) >= 2
                hits &= between
                chance = u if not name else np.where(
                    always, 1.0, drawn_probability(cosines(q, keys - centre), *shape)
                )  # fmt: skip
                out = head.ratio(hits | always, 1 / chance)
                errors[name].append(head.error(out))
                if name:
                    continue
                weights = np.where(hits | always, head.w / u, 0.0)
                outs.append(out)
                sums.append(weights.sum())
                one.append(weights[between].max() / weights.sum())
                if len(outs) == 1:
                    drawn.append(hits)
                for label, times in _bounded(u, always).items():
                    errors[label].append(head.error(head.ratio(hits | always, times)))
                errors["magicpig + means"].append(head.error(head.with_means(hits | always, 1 / u)))
        other = cosines(q @ known.basis[1], (keys - known.centre) @ known.basis[0])
        in_basis = np.where(always, 1.0, drawn_probability(other, *shape))
        weight = head.w[between].sum()
        chance_left = np.var(outs, axis=0, ddof=1).sum() / len(outs)
        squared = ((np.mean(outs, 0) - head.exact) ** 2).sum() - chance_left
        bias = np.sqrt(max(0.0, squared)) / np.linalg.norm(head.exact)
        figures = {
            "m": u[between].mean(), "W": weight, "cos": head.cosine[between].std(),
            "raw": cosines(q, keys)[between].mean(),
            "reach": (head.w * u)[between].sum() / weight, "one": np.mean(one),
            "Z": np.sqrt(np.mean((np.array(sums) - 1) ** 2)), "bias": bias,
            "alone": self._tried(head, u), "basis": self._tried(head, in_basis),
            "basis cos": other[between].std(), "basis m": in_basis[between].mean(),
            "magicpig": np.mean(errors.pop("")),
        }  # fmt: skip
        figures |= {name: np.mean(values) for name, values in errors.items()}
        return {name: float(value) for name, value in figures.items()}

    def _estimates(self, head: Head, shape: tuple[int, int], drawn: float) -> dict[str, float]:
        """The second table's figures that read m tokens without hash tables."""
        m, always = max(2, round(drawn)), head.always()
        between = np.where(always, 0.0, 1.0)
        deviation = head.w * np.linalg.norm(head.values - head.exact, axis=1)
        top, half = head.top(m), head.top(m // 2)
        shares = between * head.w
        oracle = oracle_sample(shares, head.values, m, self._rng)
        outs = {
            "sinks and 64 tokens": head.ratio(always),
            "sinks and 256 tokens": head.ratio(head.always(LONG_WINDOW)),
            "exact top m": head.ratio(top),
            "exact top m + means": head.with_means(top),
            "m draws by w (oracle sampling)": head.w[always] @ head.values[always]
            + shares.sum() * oracle,
        }
        errors = {name: head.error(out) for name, out in outs.items()}
        rest = np.where(half, 0.0, between)
        proposals = {
            "as tables do": rest * drawn_probability(head.cosine, *shape),
            "optimal": rest * deviation,
        }
        for name, proposal in proposals.items():
            u = np.where(half, 1.0, np.maximum(capped(proposal, m - m // 2), 1e-12))
            errors[f"exact top m/2, m/2 draws {name}, means"] = self._tried(head, u, means=True)
        u = np.where(always, 1.0, np.maximum(capped(between * deviation, m), 1e-12))
        return errors | {"m draws optimal": self._tried(head, u)}

    def _tried(self, head: Head, u: F64, *, means: bool = False) -> float:
        """The mean error of estimates that draw each token by itself, with probability u."""
        errors = []
        for _ in range(_TRIES):
            tokens = (self._rng.random(len(u)) < u) | head.always()
            out = head.with_means(tokens, 1 / u) if means else head.ratio(tokens, 1 / u)
            errors.append(head.error(out))
        return float(np.mean(errors))


def _bounded(u: F64, always: Bools) -> dict[str, F64]:
    """Weights of draws that are bounded: as by the authors' code, and tighter."""
    return {
        "magicpig, 1 / (u + 0.0001)": 1 / (u + np.where(always, 0.0, 1e-4)),
        "magicpig, u at least 5%": 1 / np.maximum(u, 0.05),
        "magicpig, draws not weighed": np.ones_like(u),
    }


def study(model: Model, passage: Passage, packs: Path, every: int, found: Study) -> None:
    """Decode what follows a passage after its pack; `found` hears of each `every`-th token."""
    pack = packs / pack_name(passage, None, model)
    shadow = Shadow(TOPK, found, [False])
    room = len(passage.read) + len(passage.following)
    with (
        model.silenced(),
        model.context(room, shadow, store=Disk(pack, read_only=True), kv_on="host") as context,
    ):
        context.index()
        for n, token in enumerate(passage.following[:-1], 1):
            shadow.watching[0] = n % every == 0
            context.decode(token)


_FIRST = ("W", "cos", "raw", "slope", "bits", "m", "reach", "one", "Z", "bias")
_SHARES = ("W", "m", "reach", "one", "bias", "basis m")
_LATER = ("alone", "basis", "basis cos", "basis m", "early", "none", "group")
_NOT_ERRORS = {*_FIRST, *_LATER, "layer", "head", "tables", "text"}


def tables_of(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of the two tables."""
    shapes = list(dict.fromkeys(row["tables"] for row in rows))
    layers = sorted({row["layer"] for row in rows})
    names = (*_FIRST, "magicpig", *_LATER)
    yield f"| tables | layer | {' | '.join(names)} |"
    yield f"|---|---:|{'---:|' * len(names)}"
    for shape in shapes:
        for layer in layers:
            some = [r for r in rows if r["layer"] == layer and r["tables"] == shape]
            cells = [_cell(name, np.mean([row[name] for row in some])) for name in names]
            yield f"| {shape} | {layer} | {' | '.join(cells)} |"
    yield ""
    yield f"| error | {' | '.join(f'{s}, layer {i}' for s in shapes for i in layers)} |"
    yield f"|---|{'---:|' * len(shapes) * len(layers)}"
    for name in (name for name in rows[0] if name not in _NOT_ERRORS):
        means = [
            np.mean([r[name] for r in rows if r["layer"] == layer and r["tables"] == shape])
            for shape in shapes
            for layer in layers
        ]
        yield f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |"


def _cell(name: str, value: float) -> str:
    return f"{value:.1%}" if name in _SHARES else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def main() -> None:
    """Entry point of the module."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = p.add_argument
    add("--model", type=Path, required=True)
    add("--packs", type=Path, required=True, help="folder of `kvarn perplexity --work`")
    add("--ctx", type=int, required=True)
    add("--text", type=Path, nargs="+", required=True)
    add("--decode", type=int, default=256)
    add("--every", type=int, default=64)
    add("--tables", default="8x75,10x150", help="KxL with commas")
    add("--seeds", type=int, default=3)
    add("--layers", default="", help="with commas (default: all that see everything)")
    add("--rows", type=Path, help="JSON lines, to which those of these texts are added")
    o = p.parse_args()
    shapes = [(int(k), int(n)) for k, n in (one.split("x") for one in o.tables.split(","))]
    model, rows = load(o.model, threads=1), []
    for path in o.text:
        (passage,) = passages_of(model, {path.stem: read_text(path).decode()}, o.ctx, o.decode)
        found = Study(shapes, o.seeds, {int(i) for i in o.layers.split(",") if i})
        study(model, passage, o.packs, o.every, found)
        rows += [{"text": path.stem, **row} for row in found.rows]
    if o.rows is not None:
        with o.rows.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        rows = [json.loads(line) for line in o.rows.read_text().splitlines()]
    for line in tables_of(rows):
        show(line)


if __name__ == "__main__":
    main()
