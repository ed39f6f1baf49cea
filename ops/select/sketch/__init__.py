"""Sketches: one bit for each rotated dimension of a key, from which q . k is estimated (RaBitQ).

`index` has the wrappers that index keys, `search` those of choices for one token and for many rows.
"""
