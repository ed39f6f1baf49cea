"""Matrices times few vectors: one token (`rows`), up to four (`batch`), and both for types whose
rows are laid out anew (`interleaved`)."""
