"""Training the encoders of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...models.config import ModelConfig
from ...runtime.attend.encoders import Dense, LearnedLayer
from .labels import Batch
from .networks import LOSSES, HeadNetworks, LayerStudent
from .principal import Maps
from .settings import Settings

_WARM_UP = 20  # steps
_FALLING = 0.5  # last share of the steps, in which the rate falls to 0


class Student:
    """The encoders of one layer and their optimiser."""

    def __init__(self, settings: Settings, config: ModelConfig, layer: int) -> None:
        torch.manual_seed(settings.seed * 1009 + layer)
        self._settings = settings
        heads, width = (config.n_heads, config.n_kv_heads), config.head_dim
        self._model = LayerStudent(heads, width, settings.hidden, settings.bits)
        self._optimiser = torch.optim.Adam(self._model.parameters(), lr=settings.rate)
        self.begun = False
        """Whether it has the maps that it starts from."""
        self._scaled = False

    def begin(self, maps: Maps) -> None:
        """Start from linear encoders."""
        queries, keys, bias = (torch.from_numpy(x) for x in (maps.queries, maps.keys, maps.bias))
        queries = queries.repeat_interleave(self._model.group, 0)
        self._model.q.begin(queries, torch.zeros(len(queries), queries.shape[2]))
        self._model.k.begin(keys, bias)
        self.begun = True

    def step(self, batch: Batch, done: float) -> tuple[float, float]:
        """One step of Adam, `done` of the whole training being over (0 … 1).

        Gives the loss and the share of labels that were among the best 1% of the batch.
        """
        q, keys, weight = (torch.from_numpy(x) for x in (batch.q, batch.keys, batch.weight))
        positive, allowed = (torch.from_numpy(x.copy()) for x in (batch.positive, batch.allowed))
        if not self._scaled:
            self._model.q.normalise(q)
            self._model.k.normalise(keys)
            self._scaled = True
        steps = done * self._settings.n_chunks * self._settings.steps
        share = min(1.0, (steps + 1) / _WARM_UP, (1 - done) / _FALLING)
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.rate * share
        name = self._settings.loss
        logits = self._model(q, keys, soft=name == "bce")
        loss: Tensor = LOSSES[name](logits, positive, allowed, weight)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        candidates = torch.from_numpy(batch.candidates)
        share = _label_share(logits.detach(), positive, allowed, weight, candidates)
        return loss.item(), share

    @property
    def layer(self) -> LearnedLayer:
        """The networks as a file holds them."""
        return LearnedLayer(_dense(self._model.q), _dense(self._model.k))

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays from which `load` goes on exactly here, by name."""
        arrays = {f"model.{name}": x.numpy() for name, x in self._model.state_dict().items()}
        for i, moments in self._optimiser.state_dict()["state"].items():
            arrays.update({f"adam.{i}.{name}": x.numpy() for name, x in moments.items()})
        return {**arrays, "begun": np.array(self.begun), "scaled": np.array(self._scaled)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a `state`. Raises `ValueError`, `LookupError` or `RuntimeError` for another
        student's."""
        weights: dict[str, Tensor] = {}
        moments: dict[int, dict[str, Tensor]] = {}
        parameters = list(self._model.parameters())
        for key, array in state.items():
            kind, _, name = key.partition(".")
            tensor = torch.from_numpy(np.array(array))
            if kind == "model":
                weights[name] = tensor
            elif kind == "adam":
                number, _, name = name.partition(".")
                if tensor.shape not in ((), parameters[int(number)].shape):
                    raise ValueError(f"{key} of shape {tuple(tensor.shape)}")
                moments.setdefault(int(number), {})[name] = tensor
        self._model.load_state_dict(weights)
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.begun, self._scaled = bool(state["begun"]), bool(state["scaled"])


def _label_share(
    logits: Tensor, positive: Tensor, allowed: Tensor, weight: Tensor, candidates: Tensor
) -> float:
    """Share of labels among the best 1% of each query's candidates; keys count by their weight."""
    order = logits.masked_fill(~allowed, -torch.inf).argsort(-1, descending=True)
    each = weight[:, None, None].expand_as(logits).gather(-1, order)
    above = each.cumsum(-1) - each
    within = above < 0.01 * candidates[:, None]
    hits = positive.gather(-1, order) & within
    return float(hits.sum() / positive.sum())


def _dense(networks: HeadNetworks) -> tuple[Dense, ...]:
    """Weights (heads, in, out) as (heads, out, in) in half precision, biases as they are."""
    return tuple(
        Dense(
            np.ascontiguousarray(w.detach().mT.numpy().astype(np.float16)),
            b.detach().numpy().copy(),
        )
        for w, b in zip(networks.weights, networks.biases)
    )
