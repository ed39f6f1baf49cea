"""Products with one to four tokens: of `rows` in the file's order, or `interleaved` ones.

`blocks` has the arithmetic of `rows`.
"""

MAX_TOKENS = 4
"""With more tokens, unpacking the rows into panels saves more than it costs."""
