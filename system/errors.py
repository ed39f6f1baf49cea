"""The root of every error that a user of kvarn can cause."""


class KvarnError(Exception):
    """What was being done, what was found, what was expected, what to do: one line."""
