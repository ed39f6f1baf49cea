"""Signatures: keys and queries as bits, compared by Hamming distance (HashAttention, SimHash).

`network` has what encodes vectors, `choose` the wrappers of choices for one token and for rows.
"""
