"""The Shape of kernels for shared rows."""

from numba import types
from numba.extending import intrinsic, models, register_model

from ..layout import BLOCK, kv_type
from ..shape import Shape
from .layout import SharedLayout


class SharedShape(Shape):
    """Type and blocks of 32 of a row, and query heads of a round (1 to 4)."""

    def __init__(self, code: int, blocks: int, heads: int) -> None:
        self.k_type = self.v_type = kv_type(code)
        self.layout = SharedLayout(BLOCK * blocks, self.k_type.name, self.v_type.name)
        self.blocks, self.heads = blocks, heads
        self.padded, self.vectors = BLOCK * blocks, 2 * blocks
        types.Type.__init__(self, f"kv_shared_shape_{code}_{blocks}_{heads}")


register_model(SharedShape)(models.OpaqueModel)


@intrinsic(prefer_literal=True)
def shape_of(typingctx, code, blocks, heads):
    """The SharedShape for three integer constants."""
    literals = code, blocks, heads
    out = SharedShape(*(x.literal_value for x in literals))
    return out(*literals), lambda ctx, b, sig, vals: ctx.get_dummy_value()
