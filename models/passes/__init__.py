"""Forward passes, from ids of tokens to logits.

transformer.py   tokens of one context: the layers one after another
batch.py         tokens of several contexts, with the same weights
pauses.py        where the pass of a prompt lets other passes compute
split.py         a pass that is recorded in parts
"""
