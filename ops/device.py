"""The interface of a machine that computes: memory, and operations by name.

The forward pass, stores and attend methods know a `Device` and no kernels. `ops.cpu` is the first
one. What a device has allocated is an `Array`, which others only cut by rows (`x[first:stop]`),
give another shape (`x.reshape(…)`) and ask for its length; NumPy's arrays and torch's tensors alike
can do that. What is in it is written by `put` and by operations, and read by `get`.

A model's device has its weights; a store's device has K, V and columns. They can be two
(`Device.on_host`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeAlias

from .errors import OpsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..jit.arena import Arena
    from .attention.layout import TileLayout
    from .experts.routing import Routing
    from .types import QuantType

    F32 = NDArray[np.float32]
    U8 = NDArray[np.uint8]

P = ParamSpec("P")

Array: TypeAlias = Any
"""An array of a device: of NumPy or of torch."""
Places: TypeAlias = Any
"""Where the segments of K and V, or of a column, are, for the operations of their device alone. All
others may count them (`len`), take some (`places[:n]`), and see by `is` that they are the same."""
Scratch: TypeAlias = Any
"""Memory of one operation, made by its device."""


class Weight(Protocol):
    """A matrix of N rows and K columns, prepared by a device."""

    @property
    def name(self) -> str:
        """Its tensor's name, with a number in brackets where a tensor holds several."""

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads."""

    @property
    def is_copy(self) -> bool:
        """Whether products read memory of the device, not the file's pages."""


class ExpertMatrix(Protocol):
    """A matrix of each of a layer's experts, N rows of K weights, prepared by a device."""

    @property
    def name(self) -> str:
        """Its tensor's name."""

    @property
    def n_experts(self) -> int:
        """How many."""

    @property
    def n_rows(self) -> int:
        """N."""

    @property
    def n_cols(self) -> int:
        """K."""

    @property
    def n_bytes(self) -> int:
        """Bytes of all experts."""

    @property
    def is_copy(self) -> bool:
        """Whether products read memory of the device, not the file's pages."""

    def halves(self) -> tuple[ExpertMatrix, ExpertMatrix]:
        """The first and the second half of each expert's rows: gate and up of a fused tensor."""


class LowRank(Protocol):
    """What adapters add to a matrix, prepared by a device."""

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads."""


class Activations(Protocol):
    """The vectors that matrices are multiplied by."""

    @property
    def x(self) -> Array:
        """float32 (T, K)."""

    def set(self, x: Array) -> Activations:
        """Use x float32 (T, K), which must not change until the next `set`."""


class Recorded(Protocol):
    """Operations that were recorded."""

    def run(self) -> None:
        """Run all of them, on the same arrays."""


class Numbers(Protocol):
    """Numbers that recorded operations read when they run."""

    def set(self, values: Sequence[int]) -> None:
        """Change all of them."""

    def now(self) -> list[int]:
        """Their values, as `int`s by which operations that are being recorded find the numbers.
        What is computed from one (`now()[0] + 1`) is a plain number."""


class Device(ABC):
    """Memory and operations of one machine. One thread at a time uses it: the engine's.

    Operations check shapes and types, raise `OpsError` where they do not fit, and overwrite `out`.
    """

    name: ClassVar[str]
    chunk: ClassVar[int]
    """How many tokens of a prompt are best read in one pass, a multiple of 512."""
    least_rows: ClassVar[int]
    """Rows that a pass of a prompt has at least, so that the bits of each do not depend on how many
    are read in one pass; 1 where no number of rows would do that."""
    list_types: ClassVar[tuple[type[np.generic], type[np.generic]]]
    """Types of lists of tokens, and of their lengths."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """How many threads compute. What was recorded holds for one number of them."""

    # Memory.

    @abstractmethod
    def memory(self, shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
        """An array of any contents, on a cache line."""

    @abstractmethod
    def zeros(self, shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
        """An array of zeros."""

    @abstractmethod
    def put(self, x: NDArray[Any], out: Array | None = None) -> Array:
        """The array with what `x` holds: `out`, or a new one, or `x` itself where that can be."""

    @abstractmethod
    def get(self, x: Array, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """What `x` holds: in `out`, or in a copy, or `x` itself where that can be."""

    @abstractmethod
    def numbers(self, n: int) -> Numbers:
        """n numbers, which are 0 at first."""

    def tell_time(self, times: NDArray[np.int64], i: int) -> None:  # noqa: B027
        """times[i] = the nanoseconds of a clock, when recorded operations come here; nothing where
        they do not run on the host."""

    @abstractmethod
    def record(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> Recorded:
        """Call `function` and record its operations without running them. Whoever runs them has to
        keep their arrays."""

    @abstractmethod
    def on_host(self, function: Callable[..., None], inputs: Sequence[Array], out: Array) -> None:
        """function(*inputs, out) with NumPy arrays; it fills `out` and may change the inputs, whose
        contents then do not matter. Not for recording."""

    # What models compute.

    @abstractmethod
    def weight(
        self, type: QuantType, data: U8, n_cols: int, name: str = "", arena: Arena | None = None
    ) -> Weight:
        """Prepare the rows of a file's tensor, uint8 (N, row_bytes(type, n_cols)).

        arena: memory of the host for what is repacked; None: only single rows will be read.
        """

    @abstractmethod
    def activations(self, max_rows: int, n_cols: int, *, alone: bool = False) -> Activations:
        """Room for up to `max_rows` vectors. alone: on the CPU, products with several vectors give
        each the bits that it has alone."""

    @abstractmethod
    def linear(self, act: Activations, weight: Any, out: Array) -> None:
        """out = x W^T, float32 (T, N), for the T vectors that `act` holds."""

    def linear_many(self, act: Activations, weights: Sequence[Any], outs: Sequence[Array]) -> None:
        """`linear` for several matrices that read the same vectors."""
        for weight, out in zip(weights, outs, strict=True):
            self.linear(act, weight, out)

    @abstractmethod
    def get_rows(self, weight: Any, ids: Array, out: Array) -> None:
        """out[t] = W[ids[t]]: ids int32 (T,), out float32 (T, K)."""

    # What not every device computes: a model that needs it is not loaded for another one.

    def _lacks(self, name: str, what: str) -> OpsError:
        return OpsError(
            f"loading {name}: the device {self.name} does not compute {what}; use --device cpu"
        )

    def low_rank(self, a: F32, b: F32) -> LowRank:
        """Prepare what an adapter adds to a matrix: b a, of a float32 (R, K) and b (N, R)."""
        raise self._lacks("adapters", "them")

    def low_rank_scratch(self, max_rows: int) -> Scratch:
        """For `add_low_rank` of up to `max_rows` vectors."""
        raise self._lacks("adapters", "them")

    @property
    def add_low_rank(self) -> Callable[..., None]:
        """`ops.low_rank.api.add_low_rank`."""
        raise self._lacks("adapters", "them")

    def text_scratch(self, head_dim: int) -> Scratch:
        """For `text_attention`."""
        raise self._lacks("a text encoder", "its attention")

    @property
    def text_attention(self) -> Callable[..., None]:
        """`ops.attention.texts.api.text_attention`."""
        raise self._lacks("a text encoder", "its attention")

    def check_experts(self, name: str) -> None:
        """Raise `KvarnError` that names the tensor, where the device computes no experts."""
        raise self._lacks(name, "routed experts")

    def expert_matrix(self, type: QuantType, data: U8, n_cols: int, name: str = "") -> ExpertMatrix:
        """Prepare a file's tensor, uint8 (n_experts, N, row_bytes(type, n_cols)), to be read in
        place as far as the device can."""
        raise self._lacks(name, "routed experts")

    def experts_scratch(self, routing: Routing, n_embd: int, n_ff: int, max_rows: int) -> Scratch:
        """For `experts` of up to `max_rows` tokens."""
        raise self._lacks("a layer", "routed experts")

    @property
    def experts(self) -> Callable[..., None]:
        """`ops.experts.api.experts`."""
        raise self._lacks("a layer", "routed experts")

    @property
    @abstractmethod
    def pointwise(self) -> Any:
        """The operations of `ops.pointwise`, by the same names."""

    @property
    @abstractmethod
    def recurrent(self) -> Any:
        """The operations of `ops.recurrent.api`, by the same names. Raises `KvarnError` where a
        device has none."""

    # What stores and attend methods compute, on a device that has K and V.

    @abstractmethod
    def append_kv(self, k: Array, v: Array, places: Places, layout: TileLayout, start: int) -> None:
        """Store keys and values float32 (T, J, E) of positions start … start + T - 1."""

    @abstractmethod
    def attention_scratch(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, max_rows: int, n_ctx: int
    ) -> Scratch:
        """For `attention` of up to `max_rows` new tokens over up to `n_ctx` tokens."""

    @property
    @abstractmethod
    def attention(self) -> Callable[..., None]:
        """`ops.attention.api.attention`."""

    @property
    @abstractmethod
    def attention_rows(self) -> Callable[..., None]:
        """`ops.attention.api.attention_rows`."""

    @abstractmethod
    def gathered_scratch(
        self, n_heads: int, n_kv_heads: int, layout: TileLayout, room: int
    ) -> Scratch:
        """For `gathered_attention` over lists of up to `room` tokens."""

    @property
    @abstractmethod
    def gathered_attention(self) -> Callable[..., None]:
        """`ops.attention.decode.gathered.gathered_attention`."""

    @property
    @abstractmethod
    def select(self) -> Any:
        """The operations of `ops.select`, by the same names."""

    @abstractmethod
    def networks(
        self, layers: Mapping[int, Any], n_heads: int, n_kv_heads: int, layout: TileLayout
    ) -> Mapping[int, Any]:
        """`LayerNetworks` of the layers where the device can use them, with the methods
        `sign_queries`, `sign_keys` and `sign_token`."""

    @abstractmethod
    def read_kv(
        self, places: Places, layout: TileLayout, n_kv_heads: int, start: int, stop: int
    ) -> tuple[F32, F32]:
        """Keys and values of tokens start … stop - 1 as stored, rotated back: (T, J, E) each."""

    @abstractmethod
    def read_items(self, places: Places, n_kv_heads: int, item_bytes: int) -> U8:
        """What a column holds in all these segments: uint8 (J, tokens, item_bytes)."""

    @abstractmethod
    def write_items(self, places: Places, items: U8) -> None:
        """Write uint8 (J, tokens, item_bytes) into a column, whole segments."""


class KVDevice(Device):
    """A device with memory of its own that can have K and V, or leave them to the host."""

    @abstractmethod
    def memory_left(self) -> tuple[int, int]:
        """Bytes that can be allocated, and bytes that are held."""

    @abstractmethod
    def planned_bytes(self, make: Callable[[Device], object]) -> int:
        """Bytes that what `make` returns would hold, if it were made of this device; `make` is
        called with one that has no memory, which computes nothing."""

    @abstractmethod
    def check_served(self, layout: TileLayout) -> None:
        """Raise `KvarnError` that names a type or head_dim without kernels."""
