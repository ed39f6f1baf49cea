"""Attention of one new token: over all tokens (`token`), or over those of a list (`gathered`)."""
