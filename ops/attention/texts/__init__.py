"""Attention of text encoders: every token of a text reads every other, or those near it.

api.py       the checking wrapper
work.py      how texts are cut into blocks; the arguments and the scratch memory of the kernel
tiles.py     its inner loops
kernels.py   the kernel
"""
