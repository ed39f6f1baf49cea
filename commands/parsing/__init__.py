"""Reads command lines: the parser, its help, and what is meant by words that it does not know."""
