"""References of AArch64 are written as GNU's linker writes them.

The table is what GNU ld 2.40 made of an instruction at `PLACE` that refers to an address, from its
object file (`readelf` tells the types): `:lo12:`, `:abs_g1_nc:`, `adrp`, `bl` and so on.
"""

import pytest
from llvmlite import binding as llvm

from kvarn.jit.kernel_cache import elf, relocations
from kvarn.jit.kernel_cache.relocations import AARCH64

TRIPLE = "aarch64-unknown-linux-gnu"


def emitted(text: str, codemodel: str = "jitdefault") -> elf.Object:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu="neoverse-n1", codemodel=codemodel, jit=codemodel == "jitdefault"
    )
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    return elf.Object(machine.emit_object(module))


PLACE = 0x7FFF_1234_5678
# The type, the bytes in the object file, the address, the bytes in the program.
LINKED = [
    (264, "080080f2", 0x123456789abcdef0, "08de9bf2"),
    (264, "080080f2", 0x7ffff0000010, "080280f2"),
    (264, "080080f2", 0x10, "080280f2"),
    (264, "080080f2", 0xfffffffffffffff0, "08fe9ff2"),
    (266, "0800a0f2", 0x123456789abcdef0, "8857b3f2"),
    (266, "0800a0f2", 0x7ffff0000010, "0800bef2"),
    (266, "0800a0f2", 0x10, "0800a0f2"),
    (266, "0800a0f2", 0xfffffffffffffff0, "e8ffbff2"),
    (268, "0800c0f2", 0x123456789abcdef0, "08cfcaf2"),
    (268, "0800c0f2", 0x7ffff0000010, "e8ffcff2"),
    (268, "0800c0f2", 0x10, "0800c0f2"),
    (268, "0800c0f2", 0xfffffffffffffff0, "e8ffdff2"),
    (269, "0800e0f2", 0x123456789abcdef0, "8846e2f2"),
    (269, "0800e0f2", 0x7ffff0000010, "0800e0f2"),
    (269, "0800e0f2", 0x10, "0800e0f2"),
    (269, "0800e0f2", 0xfffffffffffffff0, "e8fffff2"),
    (277, "41000091", 0x123456789abcdef0, "41c03b91"),
    (277, "41000091", 0x7ffff0000010, "41400091"),
    (277, "41000091", 0x10, "41400091"),
    (277, "41000091", 0xfffffffffffffff0, "41c03f91"),
    (278, "41004039", 0x123456789abcdef0, "41c07b39"),
    (278, "41004039", 0x7ffff0000010, "41404039"),
    (278, "41004039", 0x10, "41404039"),
    (278, "41004039", 0xfffffffffffffff0, "41c07f39"),
    (284, "41004079", 0x123456789abcdef0, "41e05d79"),
    (284, "41004079", 0x7ffff0000010, "41204079"),
    (284, "41004079", 0x10, "41204079"),
    (284, "41004079", 0xfffffffffffffff0, "41e05f79"),
    (285, "410000b9", 0x123456789abcdef0, "41f00eb9"),
    (285, "410000b9", 0x7ffff0000010, "411000b9"),
    (285, "410000b9", 0x10, "411000b9"),
    (285, "410000b9", 0xfffffffffffffff0, "41f00fb9"),
    (286, "410040f9", 0x123456789abcdef0, "417847f9"),
    (286, "410040f9", 0x7ffff0000010, "410840f9"),
    (286, "410040f9", 0x10, "410840f9"),
    (286, "410040f9", 0xfffffffffffffff0, "41f847f9"),
    (299, "4100c03d", 0x123456789abcdef0, "41bcc33d"),
    (299, "4100c03d", 0x7ffff0000010, "4104c03d"),
    (299, "4100c03d", 0x10, "4104c03d"),
    (299, "4100c03d", 0xfffffffffffffff0, "41fcc33d"),
    (257, "0000000000000000", 0x123456789abcdef0, "f0debc9a78563412"),
    (257, "0000000000000000", 0x7ffff0000010, "100000f0ff7f0000"),
    (257, "0000000000000000", 0x10, "1000000000000000"),
    (257, "0000000000000000", 0xfffffffffffffff0, "f0ffffffffffffff"),
    (275, "09000090", 0x7fff12345678, "09000090"),
    (275, "09000090", 0x7fff12346678, "090000b0"),
    (275, "09000090", 0x7fff12349000, "29000090"),
    (275, "09000090", 0x800012344678, "e9ff7ff0"),
    (275, "09000090", 0x7fff12344fff, "e9fffff0"),
    (275, "09000090", 0x7ffe12346000, "090080b0"),
    (283, "00000094", 0x7fff12345678, "00000094"),
    (283, "00000094", 0x7fff12345680, "02000094"),
    (283, "00000094", 0x7fff1a345674, "ffffff95"),
    (283, "00000094", 0x7fff12345674, "ffffff97"),
    (283, "00000094", 0x7fff0a345678, "00000096"),
    (282, "00000014", 0x7fff12345678, "00000014"),
    (282, "00000014", 0x7fff12346678, "00040014"),
    (282, "00000014", 0x7fff1a345674, "ffffff15"),
    (282, "00000014", 0x7fff12344678, "00fcff17"),
    (282, "00000014", 0x7fff0a345678, "00000016"),
    (261, "00000000", 0x7fff12345678, "00000000"),
    (261, "00000000", 0x7fff92345677, "ffffff7f"),
    (261, "00000000", 0x7ffe92345678, "00000080"),
    (261, "00000000", 0x7fff12345673, "fbffffff"),
    (260, "0000000000000000", 0x7fff12345678, "0000000000000000"),
    (260, "0000000000000000", 0x80ff12345678, "0000000000010000"),
    (260, "0000000000000000", 0x7eff12345675, "fdfffffffffeffff"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "before", "target", "after"), LINKED)
def test_a_reference_is_written_as_a_linker_writes_it(
    kind: int, before: str, target: int, after: str
) -> None:
    """And what is around it stays, whatever was in its place."""
    size = relocations.size_of(AARCH64, kind)
    for old in (before, after):
        memory = bytearray(b"left" + bytes.fromhex(old) + b"right")
        assert len(memory) == size + 9
        relocations.write(memory, 4, AARCH64, kind, target, PLACE)
        assert memory == b"left" + bytes.fromhex(after) + b"right"


def test_all_types_that_are_known_are_in_the_table() -> None:
    known = {kind for kind in range(1100) if relocations.can_write(AARCH64, kind)}
    assert known == {kind for kind, *_ in LINKED}
    assert not relocations.can_write(0, 1)


@pytest.mark.parametrize(("kind", "distance"), [
    (283, 0x8000000), (282, -0x8000004), (261, 1 << 31), (261, -(1 << 31) - 1),
    (275, 1 << 33), (275, -(1 << 33)),
])  # fmt: skip
def test_what_an_instruction_cannot_reach_is_refused(kind: int, distance: int) -> None:
    with pytest.raises(relocations.TooFar):
        relocations.write(bytearray(8), 0, AARCH64, kind, PLACE + distance, PLACE)


def test_a_veneer_loads_its_address() -> None:
    """As `objdump` reads it: ldr x16, #8; br x16."""
    address = 0x1122_3344_5566_7788
    made = bytes.fromhex("5000005800021fd6") + address.to_bytes(8, "little")
    assert relocations.veneer(address) == made
    assert len(made) == relocations.VENEER


TEXT = """
@table = internal constant [4 x double] [double 1.0, double 4.0, double 9.0, double 16.0]
@jumps = internal constant [2 x ptr] [ptr @plain, ptr @sqrt]
declare double @sqrt(double)

define internal double @plain(double %x) noinline {
  ret double %x
}

define double @symbol(i64 %i) {
  %place = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %place
  %y = call double @plain(double %x)
  %z = call double @sqrt(double %y)
  %which = and i64 %i, 1
  %jump = getelementptr [2 x ptr], ptr @jumps, i64 0, i64 %which
  %function = load ptr, ptr %jump
  %v = call double %function(double %z)
  ret double %v
}
"""
SQRT = 0x7F00_1111_2220


@pytest.mark.parametrize("codemodel", ["jitdefault", "small"])
def test_an_object_file_refers_to_itself_wherever_it_is(codemodel: str) -> None:
    """All that depends on where it is are the numbers of the references: moved by whole pages, the
    code of the small model stays the same, and tables move with it."""
    file = emitted(TEXT, codemodel)
    kinds = {kind for _, _, kind, _, _ in file.relocations}
    assert {283, 257} < kinds and kinds & {264, 275}
    placed = elf.LoadedObject(file, {"sqrt": SQRT}.get)
    base, moved = 0x7FFF_0000_0000, 0x7FFF_0000_0000 + 0x1357_9000
    first, second = placed.at(base), placed.at(moved)
    assert len(first) == len(second) == placed.size
    assert placed.address("symbol", moved) - placed.address("symbol", base) == moved - base
    # The only veneer is the end: the call of sqrt goes there.
    assert first[-16:] == second[-16:] == relocations.veneer(SQRT)
    calls = [at for at in range(0, placed.size - 16, 4) if _is_call(first, at)]
    targets = {at + _distance(first, at) for at in calls}
    assert placed.size - 16 in targets and len(targets) == 2
    # The table of functions: one that moves and one that does not.
    n = first.index(SQRT.to_bytes(8, "little")) - 8
    plain = [int.from_bytes(memory[n : n + 8], "little") for memory in (first, second)]
    assert plain[1] - plain[0] == moved - base and plain[0] - base in targets
    assert second[n + 8 : n + 16] == first[n + 8 : n + 16]
    if codemodel == "small":
        differing = {at // 8 * 8 for at in range(placed.size) if first[at] != second[at]}
        assert differing == {n}


def _is_call(memory: bytearray, at: int) -> bool:
    return memory[at + 3] >> 2 == 0b100101


def _distance(memory: bytearray, at: int) -> int:
    number = int.from_bytes(memory[at : at + 4], "little") & 0x3FFFFFF
    return 4 * (number - (number >> 25 << 26))
