"""The limits of compiling and rendering a template, and the messages between the processes.

    offset  bytes
         0      1  kind: one of the letters below
         1      8  length of what follows, little-endian
         9      …  to the worker: marshal of plain values; from it: UTF-8, lone surrogates allowed

Messages from the worker are never unmarshalled, because it runs untrusted templates.
"""

import struct
from typing import NamedTuple

HEADER = struct.Struct("<cQ")
# To the worker. Values are marshalled because JSON would change keys that are numbers.
COMPILE, RENDER = b"C", b"R"
# From it: ready, a part of the text, its end, refused by the template, and kinds of failure.
READY, TEXT, DONE, REFUSED, SYNTAX, FAILED, MEMORY = b"H", b"T", b"D", b"R", b"S", b"F", b"M"
MARSHAL_VERSION = 4  # readable by all Pythons that kvarn runs on

# Templates of large models have 10 to 40 thousand characters.
MAX_SOURCE = 1 << 20
# Characters of the rendered text, and of any string made while rendering.
MAX_CHARS = 16 << 20


class Limits(NamedTuple):
    """The limits of one template: memory of its process in bytes, CPU seconds of a call, …"""

    memory: int = 256_000_000
    compile_seconds: int = 3
    render_seconds: int = 7
    # Loop rounds, calls and filters: a chat of 1,000 messages stays far below, even where a
    # template walks all messages for each of them.
    steps: int = 5_000_000
    # Wall-clock time, for a process that is stopped or waits for swapped memory.
    wall_seconds: int = 60
