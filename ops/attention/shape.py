"""The parameters of an attention kernel, as a Numba type; access to stored rows."""

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)

from ...jit import simd as v
from ...jit.cached import jit
from ...jit.simd import emits_for, read, write
from .layout import BLOCK, F16, Q8_0, SEGMENT, SHARED, TILE, kv_type, layout_of
from .work import HEAD_PARTS

VEC = v.vty(v.F32, 16)
WIDE = v.VARIANT == "avx512"  # 32 registers of 16 floats; elsewhere 16 registers of 8, or less


class Shape(types.Type):
    """Types of K and V (or `SHARED`), blocks of 32 in a row, query heads of a round (1 to 4)."""

    def __init__(self, k_code: int, v_code: int, blocks: int, heads: int) -> None:
        self.k_type = kv_type(k_code)
        self.v_type = self.k_type if v_code == SHARED else kv_type(v_code)
        self.layout = layout_of(BLOCK * blocks, self.k_type.name, self.v_type.name)
        self.blocks, self.heads = blocks, heads
        self.padded, self.vectors = BLOCK * blocks, 2 * blocks
        super().__init__(f"kv_shape_{k_code}_{v_code}_{blocks}_{heads}")

    @property
    def strip(self) -> int:
        """Vectors of a V row whose sums are in registers at a time, for all heads of the round.

        Sixteen sums of 16 floats fit a wide machine's registers, four a narrow one's.
        """
        wanted = (16 if WIDE else 4) // self.heads
        return 4 if wanted >= 4 and self.vectors % 4 == 0 else min(wanted, 2)

    @property
    def integer_keys(self) -> bool:
        """Whether keys are multiplied as integers, see `decode.integer_keys`."""
        return WIDE and self.k_type.code == Q8_0

    @property
    def panel(self) -> int:
        """Query rows in the register tile of a chunk, which has rows x 16 sums."""
        return 12 if WIDE else 6

    @property
    def pair_bytes(self) -> int:
        """Bytes of the partial sums of two keys, of one head or (AVX-512) of two."""
        return 64 if WIDE else 32

    @property
    def parts_bytes(self) -> int:
        """Bytes of the partial sums of a tile's keys."""
        return HEAD_PARTS * (-(-self.heads // 2) * 2 if WIDE else self.heads)

    @property
    def keys(self) -> int:
        """Keys in a block of a chunk: K, V and scores of one block stay in the L2 cache."""
        return 128 if self.padded <= 128 else 64


register_model(Shape)(models.OpaqueModel)


@infer_getattr
class _ShapeAttributes(AttributeTemplate):
    """Numbers of a Shape or of its layout for kernels: `shape.heads`."""

    key = Shape

    def generic_resolve(self, shape, name):
        return types.intp if hasattr(shape, name) or hasattr(shape.layout, name) else None


@lower_getattr_generic(Shape)
def _constant(ctx, b, shape, value, name):
    return ir.Constant(v.I64, int(getattr(shape if hasattr(shape, name) else shape.layout, name)))


@intrinsic(prefer_literal=True)
def shape_of(typingctx, k_code, v_code, blocks, heads):
    """The Shape for four integer constants."""
    literals = k_code, v_code, blocks, heads
    out = Shape(*(x.literal_value for x in literals))
    return out(*literals), lambda ctx, b, sig, vals: ctx.get_dummy_value()


def shaped(returns=None):
    """Decorator: make `f(b, shape, *values)` a function that kernels call with a Shape and values.

    returns: from a Shape to the Numba type of the result; without it `f` returns nothing.
    """
    return emits_for(lambda shape: shape, returns)


@jit
def tile_of(shape, segments, head, token):
    """Address of the tile that holds a token of a KV head; segments int64[n]: base addresses."""
    tiles = segments[token // SEGMENT] + head * shape.head_bytes
    return tiles + token % SEGMENT // TILE * shape.tile_bytes


def load_tile(b, address, places):
    """A Tile of vectors of 16 floats at `places`, in bytes from an address."""
    tile = ir.Constant(ir.ArrayType(VEC, len(places)), ir.Undefined)
    for i, place in enumerate(places):
        tile = b.insert_value(tile, read(b, address, VEC, place), i)
    return tile


def store_tile(b, tile, address, places):
    """Store the vectors of a Tile at such places."""
    for i, place in enumerate(places):
        write(b, b.extract_value(tile, i), address, place)


def read_scale(b, scales, block, wide):
    """The scale of a block: f16 as stored, or (wide) float32 as `products.widen_scales` writes."""
    if wide:
        return read(b, scales, v.F32, 4 * TILE * block)
    return b.fpext(read(b, scales, ir.HalfType(), 2 * block), v.F32)


def read_row(b, kind, row, scales, first, count, wide=False):
    """Vectors first .. first+count-1 of a row as f32x16; `row`, `scales`: i8* of vector 0.

    kind: KVType; wide: the scales are floats, see `products.widen_scales`.
    """
    if kind.code == F16:
        half = v.vty(ir.HalfType(), 16)
        return [b.fpext(read(b, row, half, 32 * c), VEC) for c in range(first, first + count)]
    out, block, d = [], -1, None
    for c in range(first, first + count):
        if c // 2 != block:
            block = c // 2
            d = v.splat(b, read_scale(b, scales, block, wide), 16)
        if kind.code == Q8_0:
            q = b.sitofp(read(b, row, v.vty(v.I8, 16), 16 * c), VEC)
        else:
            q = b.zext(read(b, row, v.vty(v.I8, 16), 16 * block), v.vty(v.I32, 16))
            q = b.lshr(q, v.const(q.type, 4)) if c % 2 else b.and_(q, v.const(q.type, 15))
            q = b.fsub(b.sitofp(q, VEC), v.const(VEC, 8.0))
        out.append(b.fmul(q, d))
    return out


assert TILE == 16  # one token a lane: scores of a tile are one vector
