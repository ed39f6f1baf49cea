"""The operating system: opens, writes and removes files safely, checks who can write to a folder,
prints text from outside. Imports no other room.
"""
