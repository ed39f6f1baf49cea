"""Matrices times few vectors: one token (`rows`), up to four (`batch`), and both for types whose
rows are laid out anew (`interleaved`)."""

MAX_TOKENS = 4
"""Tokens that count as few; beyond, unpacking the rows into panels costs less than it saves."""
