"""Matrices times few vectors: one token (`rows`), up to four (`batch`), and both for types whose
rows are interleaved (`interleaved`)."""

MAX_TOKENS = 4
"""Most tokens of a call; beyond, unpacking the rows into panels costs less than it saves."""
