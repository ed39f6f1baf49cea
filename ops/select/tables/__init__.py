"""Hash tables of keys, from which queries draw tokens at random (LSH sampling, MagicPIG).

`planes` says what codes are and draws the tables, `codes` computes and sorts them, `drawing` draws
from them; `api` has the wrappers.
"""
