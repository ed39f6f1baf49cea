"""Packs by many processes: many texts, each in a pack of its own, and one question to all of them;
the blocks of one text.

building.py   reads each text into a pack, by any number of processes and machines at once
blocks.py     reads the blocks of one text into one pack, by any number of processes and machines
notes.py      what became of each text, noted beside its pack
ranking.py    which packs a question fits best, and their answers
"""
