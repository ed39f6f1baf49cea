"""The interface through which the forward pass attends: an object with KV cache and method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ..ops.device import Array, Recorded


class Attention(Protocol):
    """Stores the keys and values of new tokens, and attends to the stored ones.

    `Transformer.forward` calls it for each of `ModelConfig.attention_layers`, in order, with arrays
    of its device. The object knows the position of the first new token. It reads window, scale and
    softcap from `AttentionConfig`.
    """

    @property
    def every_query(self) -> bool:
        """Whether `__call__` needs the queries of all tokens in the last layers, too."""

    @property
    def graphs(self) -> dict[Hashable, Recorded] | None:
        """The graphs of single tokens that were recorded with the calls of this object, by a key of
        who recorded them.

        None where these calls cannot be recorded. Emptied whenever an address changes.
        """

    @property
    def unrecorded(self) -> frozenset[int]:
        """The layers whose calls cannot be recorded, of the numbers by which they are called: they
        are called between `graphs` of the others."""

    def state(self, layer: int) -> Sequence[Array]:
        """What layer number `layer` of those with a state carries from token to token: the arrays
        of `ModelConfig.state_shapes`, which it changes in place, the same ones in each pass."""

    def __call__(self, layer: int, q: Array, k: Array | None, v: Array | None, out: Array) -> None:
        """Append k and v (T, J, E), attend with q (R, H, E), write out (R, H, E).

        k and v None: nothing is appended; the layer attends to what an earlier call of this pass
        has appended to the layer that it reads (`AttentionConfig.reads`).

        R is T, or less in the last layer that stores keys and values and in those after it, which
        need only the outputs of the last R tokens. q and k are rotated. q is not multiplied by
        `attention_scale` yet.
        """
