"""The metadata of the file to be: keys that each architecture has, positions, names, checks."""
