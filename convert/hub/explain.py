"""What a hub's refusals mean, in one line each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import HubError

T = TypeVar("T")

_HTTP_LIBRARIES = ("httpx", "httpx2", "requests", "hf_xet")
_LOGIN = "log in with `hf auth login` or set HF_TOKEN"
MAX_WAITS = 4
MAX_WAIT = 300.0
"""How often, and for how many seconds at a time, a hub is waited for that is asked too often."""


def asking(repo: str, call: Callable[[], T], notice: Callable[[str], None]) -> T:
    """What `call` gives, with a hub's errors as `HubError`, and patience where it asks for that."""
    for attempt in range(MAX_WAITS + 1):
        try:
            return call()
        except Exception as error:
            reason = _reason(error)
            seconds = _wait_asked_for(reason) if attempt < MAX_WAITS else None
            if seconds is None:
                explained = explain(repo, reason)
                if explained is None:
                    raise
                raise explained from reason
            notice(f"the hub is asked too often; going on in {seconds:g} s")
            time.sleep(seconds)
    raise AssertionError("the last attempt returns or raises")


def _reason(error: Exception) -> Exception:
    """Why a file is "not in the cache": what the hub said when it was asked for it."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    cause = error.__cause__
    return (
        cause
        if isinstance(error, LocalEntryNotFoundError) and isinstance(cause, Exception)
        else error
    )


def _wait_asked_for(error: Exception) -> float | None:
    """Seconds of a 429's Retry-After; None for anything else, and for what takes too long."""
    response = getattr(error, "response", None)
    if response is None or response.status_code != 429:
        return None
    asked = response.headers.get("Retry-After", "")
    seconds = float(asked) if asked.isdecimal() else 5.0
    return seconds if seconds <= MAX_WAIT else None


def explain(repo: str, error: Exception) -> HubError | None:
    """The error in words, with what to do; None for one that is not the hub's."""
    import huggingface_hub.errors as hub
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT

    page = f"{ENDPOINT}/{repo}"
    if isinstance(error, hub.GatedRepoError):
        if get_token() is None:
            return HubError(f"{repo} is gated: accept its terms at {page}, then {_LOGIN}")
        return HubError(f"{repo} is gated and your account has no access: ask for it at {page}")
    if isinstance(error, hub.RepositoryNotFoundError):
        return HubError(
            f"there is no repository {repo} at {ENDPOINT}, or it is private: check the name, or "
            f"{_LOGIN}"
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return HubError(f"{repo} has no such --revision; see {page}/commits")
    if isinstance(error, hub.HFValidationError):
        return HubError(f"{repo!r:.80} is no name of a repository: expected ORGANISATION/MODEL")
    if isinstance(error, hub.HfHubHTTPError):
        return HubError(_refusal(repo, error.response.status_code, get_token() is not None))
    if isinstance(error, (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled)):
        return HubError(f"{repo} has not been pulled to this machine, and the hub is out of reach")
    if type(error).__module__.partition(".")[0] in _HTTP_LIBRARIES:
        return HubError(
            f"cannot reach {ENDPOINT}: {error or type(error).__name__}; try again later"
        )
    return None


def _refusal(repo: str, status: int, with_token: bool) -> str:
    if status == 401:
        return f"the hub does not know your token: {_LOGIN}" if with_token else f"{repo}: {_LOGIN}"
    if status == 403:
        return f"your token may not read {repo}: give it that right, or {_LOGIN} with another"
    if status == 429:
        return "the hub is asked too often from this machine: try again in some minutes"
    return f"the hub answers {status} for {repo}: try again later"


def is_out_of_reach(error: BaseException | None) -> bool:
    """Whether an error means that there is no connection, or is to be none."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    module = type(error).__module__.partition(".")[0]
    return isinstance(error, OfflineModeIsEnabled) or module in _HTTP_LIBRARIES
