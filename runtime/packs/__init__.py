"""Packs: texts that were read once, kept on disk, and asked.

pack.py       builds, describes, lists and removes a pack
links.py      the files outside its folder that a pack names
texts.py      reads many texts, each into a pack, by any number of processes and machines at once
blocks.py     reads the blocks of one text into one pack, by any number of processes and machines
notes.py      what became of each of many texts, noted beside its pack
asking.py     a question to a pack: an answer, and the passages that weighed most in it
ranking.py    which packs a question fits best, and their answers
"""

MAX_TOKENS = 256
"""Of an answer to a question, unless another limit is given."""
