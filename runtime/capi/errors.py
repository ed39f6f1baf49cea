"""What a call through the C interface can end with, beside kvarn's other errors."""

from __future__ import annotations

from ...system.errors import KvarnError

ERROR, BUSY, CANCELLED, NOT_RUNNING, BAD_ARGUMENT = -1, -2, -3, -4, -5
"""Results of functions that failed: those of kvarn.h."""


class BadArgument(KvarnError):
    """A mistake of the program that calls."""


class InUse(KvarnError):
    """Something else needs what was to be freed."""


class Cancelled(KvarnError):
    """The program asked to stop."""


class Refused(Exception):
    """The C part has said what is wrong; the argument is the code."""
