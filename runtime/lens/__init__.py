"""What an answer attended to: weights of tokens, and the passages and places they fell on.

`passages` has what messages carry and imports no NumPy; `weights` weighs, `quotes` finds passages.
"""
