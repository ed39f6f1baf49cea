"""How a launch that is to be run lies in memory. Imports no Numba.

A record is 64-bit words, on cache lines of its own:

    word 0        address of the kernel
    word 1        in the first launch of a phase: how many launches it has; 0 for a serial one
    words 2 … 15  arguments
    word 16       the ticket: threads take parts of the work by counting it up

The launches of a phase run side by side, in all threads; the next phase begins when all are done.
"""

RECORD, PHASE, TICKET, ARGUMENTS = 192, 8, 128, 16  # bytes of a record, where its words are
MOST_WORDS = (TICKET - ARGUMENTS) // 8
