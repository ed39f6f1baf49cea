"""The root of every error that a user of kvarn can cause."""


class KvarnError(Exception):
    """One line: what was being done, what was found, what was expected, what to do."""
