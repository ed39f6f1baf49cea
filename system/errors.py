"""The root of every error that a user of kvarn can cause, and what is said of any other."""


class KvarnError(Exception):
    """One line: what was being done, what was found, what was expected, what to do."""


class OutOfDeviceMemory(KvarnError):
    """A device other than the CPU has no room for what was to be computed, which has not been
    done. What it had been given before is as it was."""


def message_of(error: BaseException) -> str:
    """What a user is told of any error; it may have more than one line."""
    if isinstance(error, KvarnError):
        return str(error)
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.filename}: no such file or folder"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory: use a smaller model, --ctx or --kv-type"
    return (
        f"unexpected {type(error).__name__}: {str(error) or 'it says no more'} "
        "(a fault of kvarn: KVARN_DEBUG=1 shows where)"
    )
