"""The root of every error that a user of kvarn can cause."""


class KvarnError(Exception):
    """What was being done, what was found, what was expected, what to do: one line."""


class OpsError(KvarnError):
    """Arguments of a kernel do not fit together: shapes, types, lengths."""
