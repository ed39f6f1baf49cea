"""Products with one to four tokens: `rows` as in the file, or `interleaved` ones.

`blocks` has the arithmetic of `rows`.
"""

MAX_TOKENS = 4
"""With more tokens, unpacking the rows into panels saves more than it costs."""
