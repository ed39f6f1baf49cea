"""Attention of one new token: to all tokens (`token`), or to those of a list (`gathered`)."""
