"""What the forward pass asks of attention: an object that owns the KV cache and the method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..jit.launch import Graph

F32 = npt.NDArray[np.float32]


class Attention(Protocol):
    """Stores the keys and values of new tokens and attends to what is stored.

    Called once per layer, in order, within one `Transformer.forward`; the object knows at which
    position the run of tokens starts, and reads window, scale and softcap from `LayerConfig`.
    """

    @property
    def every_query(self) -> bool:
        """Whether the queries of all tokens must come: see `__call__`."""
        ...

    @property
    def graphs(self) -> dict[bool, Graph] | None:
        """What `forward` has recorded for single tokens, calls of this object included.

        None where such a call does more than run steps. Emptied whenever an address has changed.
        """
        ...

    def __call__(self, layer: int, q: F32, k: F32, v: F32, out: F32) -> None:
        """Append k and v (T, J, E), attend with q (R, H, E), write out (R, H, E).

        R is T, or less in the last layer, where only the last R tokens' outputs are wanted.
        q and k are rotated already; q is not yet multiplied by `attention_scale`.
        """
        ...
