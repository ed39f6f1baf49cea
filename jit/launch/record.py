"""The layout of a launch in memory. Imports no Numba.

A record has 64-bit words, on cache lines of its own:

    word 0        address of the kernel
    word 1        in the first launch of a phase: its number of launches; 0 for a serial launch
    words 2 … 15  arguments
    word 16       ticket: threads take parts of the work by adding 1 to it

The launches of a phase run side by side in all threads. A serial launch is a phase of its own and
runs in the calling thread. A phase begins when the previous one has ended.
"""

RECORD, PHASE, TICKET, ARGUMENTS = 192, 8, 128, 16  # bytes of a record, offsets of its words
MOST_WORDS = (TICKET - ARGUMENTS) // 8
