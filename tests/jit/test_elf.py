"""Object files are loaded as LLVM's own linker loads them, and damaged ones are refused."""

import ctypes
import platform
import struct
import sys
from pathlib import Path

import pytest

from kvarn.jit import libraries
from kvarn.jit.kernel_cache import Damaged, Unlinkable, elf, emit, machine_code

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="loads code of x86 and ARM for Linux",
)

# A constant table that is addressed by a variable, a function of libm, one that code generation
# adds (memset), a local function, and a table of addresses of functions.
TEXT = """
@table = internal constant [4 x double] [double 1.0, double 4.0, double 9.0, double 16.0]
@jumps = internal constant [2 x ptr] [ptr @plain, ptr @root]
declare double @sqrt(double)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal double @root(double %x) noinline {
  %y = call double @sqrt(double %x)
  ret double %y
}

define internal double @plain(double %x) noinline {
  ret double %x
}

define i64 @SYMBOL(i64 %record, i64 %part, i64 %parts) {
  %memory = inttoptr i64 %record to ptr
  call void @llvm.memset.p0.i64(ptr %memory, i8 7, i64 %parts, i1 false)
  %index = and i64 %part, 3
  %place = getelementptr [4 x double], ptr @table, i64 0, i64 %index
  %x = load double, ptr %place
  %which = lshr i64 %part, 2
  %jump = getelementptr [2 x ptr], ptr @jumps, i64 0, i64 %which
  %function = load ptr, ptr %jump
  %y = call double %function(double %x)
  %result = fptosi double %y to i64
  ret i64 %result
}
"""


def compiled(symbol: str) -> bytes:
    return emit.compile_text(TEXT.replace("SYMBOL", symbol), symbol).object


def call(address: int, part: int) -> tuple[int, bytes]:
    memory = ctypes.create_string_buffer(600)
    function = ctypes.CFUNCTYPE(*(ctypes.c_int64,) * 4)(address)
    return function(ctypes.addressof(memory), part, 512), memory.raw


def test_code_does_what_it_does_when_llvm_links_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code = emit.compile_text(TEXT.replace("SYMBOL", "by_both"), "by_both")
    assert elf.can_load(code.object)
    address = machine_code.link(code)
    monkeypatch.setattr(elf, "can_load", lambda data: False)
    by_llvm = machine_code.link(code)
    assert address != by_llvm
    for part, expected in enumerate((1, 4, 9, 16, 1, 2, 3, 4)):
        result, memory = call(address, part)
        assert (result, memory) == call(by_llvm, part)
        assert result == expected and memory == 512 * b"\7" + 88 * b"\0"


def test_a_missing_function_is_named() -> None:
    def address_of(name: str) -> int | None:
        return None if name == "sqrt" else libraries.address_of(name)

    with pytest.raises(Unlinkable, match="missing: sqrt"):
        elf.load(compiled("without_sqrt"), "without_sqrt", address_of)


def test_another_symbol_is_refused() -> None:
    with pytest.raises(Damaged, match="absent"):
        elf.load(compiled("present"), "absent", libraries.address_of)


def test_an_object_file_that_ends_early_is_refused() -> None:
    whole = compiled("cut")
    for stop in (*range(0, len(whole), 101), len(whole) - 1):
        part = whole[:stop]
        assert not elf.can_load(part) or stop > 64
        if elf.can_load(part):
            with pytest.raises(Damaged):
                elf.load(part, "cut", libraries.address_of)


@pytest.mark.parametrize(("offset", "value"), [(4, 1), (16, 2), (18, 243)])
def test_other_object_files_are_left_to_llvm(offset: int, value: int) -> None:
    """32 bits; a program; for RISC-V."""
    data = bytearray(compiled("other"))
    struct.pack_into("<B" if offset == 4 else "<H", data, offset, value)
    assert elf.can_load(compiled("other")) and not elf.can_load(bytes(data))


def test_code_cannot_be_written_to() -> None:
    address = elf.load(compiled("fixed"), "fixed", libraries.address_of)
    with Path("/proc/self/maps").open(encoding="ascii") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            first, stop = (int(end, 16) for end in span.split("-"))
            if first <= address < stop:
                assert mode == "r-xp"
                return
    raise AssertionError("the code is in no mapping")
