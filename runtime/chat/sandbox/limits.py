"""What compiling and rendering a template may take, and the frames that processes exchange.

    offset  bytes
         0      1  what it is: one of the letters below
         1      8  length of what follows, little-endian
         9      …  to the worker: marshal of plain values; from it: UTF-8, lone surrogates allowed

What comes from the worker is never unmarshalled: it is the one that reads what others wrote.
"""

import struct
from typing import NamedTuple

HEADER = struct.Struct("<cQ")
# To the worker. Values are marshalled since JSON would change keys that are numbers.
COMPILE, RENDER = b"C", b"R"
# From it: parts of a text, its end, what the template itself refused, what failed and how.
READY, TEXT, DONE, REFUSED, SYNTAX, FAILED, MEMORY = b"H", b"T", b"D", b"R", b"S", b"F", b"M"
MARSHAL_VERSION = 4  # readable by all Pythons that kvarn runs on

# Templates of large models have 10 to 40 thousand characters.
MAX_SOURCE = 1 << 20
# Characters of the rendered text and of any string made on the way.
MAX_CHARS = 16 << 20


class Limits(NamedTuple):
    """For one template: of its process (bytes), of a call (seconds of CPU), of a rendering."""

    memory: int = 256_000_000
    compile_seconds: int = 3
    render_seconds: int = 7
    # Loop rounds, calls and filters: a chat of 1,000 messages stays far below, even where a
    # template walks all messages for each of them.
    steps: int = 5_000_000
    # Of time on the clock, for a process that is stopped, or waits for memory that is swapped.
    wall_seconds: int = 60
