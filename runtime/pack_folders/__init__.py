"""Folders of packs: many texts, each in a pack of its own, and one question to all of them.

building.py   reads each text into a pack, by any number of processes and machines at once
notes.py      what became of each text, noted beside its pack
ranking.py    which packs a question fits best, and their answers
"""
