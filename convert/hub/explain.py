"""What a hub's refusals mean, in one line each."""

from __future__ import annotations

from collections.abc import Mapping

from ...system.text import one_line
from ..errors import HubError, HubOutOfReach

_LOGIN = "log in with `hf auth login` or set HF_TOKEN"
_TRANSIENT = (408, 500, 502, 503, 504)
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2")
_WRONG_TOKEN = "Invalid credentials in Authorization header"


def refusal(repo: str, status: int, headers: Mapping[str, str], with_token: bool) -> HubError:
    """An answer other than the thing itself, in words, with what to do."""
    from huggingface_hub.constants import ENDPOINT

    page, code = f"{ENDPOINT}/{repo}", headers.get("X-Error-Code")
    if code == "GatedRepo" and not with_token:
        return HubError(f"{repo} is gated: accept its terms at {page}, then {_LOGIN}")
    if code == "GatedRepo":
        return HubError(f"{repo} is gated and your account has no access: ask for it at {page}")
    if code == "RevisionNotFound":
        return HubError(f"{repo} has no such --revision; see {page}/commits")
    if status == 401 and headers.get("X-Error-Message") == _WRONG_TOKEN:
        return HubError(f"the hub does not know your token: {_LOGIN}")
    if code == "EntryNotFound":
        return HubError(f"the hub lists a file of {repo} and does not have it: try again later")
    if code == "RepoNotFound" or status in (401, 404):
        return HubError(
            f"there is no repository {repo} at {ENDPOINT}, or it is private: check the name, or "
            f"{_LOGIN}"
        )
    if status == 403:
        return HubError(
            f"your token may not read {repo}: give it that right, or {_LOGIN} with another"
        )
    if status == 429:
        return HubError("the hub is asked too often from this machine: try again in some minutes")
    kind = HubOutOfReach if status in _TRANSIENT else HubError
    return kind(f"the hub answers {status} for {repo}: try again later")


def failure(repo: str, error: BaseException) -> HubError:
    """What went wrong while the HTTP library talked to a hub, or to what took the hub's place."""
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return HubOutOfReach("the hub is out of reach: HF_HUB_OFFLINE is set")
    said = one_line(str(error), 120) or type(error).__name__
    if type(error).__module__.partition(".")[0] in _HTTP_LIBRARIES:
        return HubOutOfReach(f"cannot reach {ENDPOINT}: {said}; try again later")
    # The library parses what it is sent and trips over some of it: any error there is the hub's.
    return HubError(f"the hub's answer for {repo} cannot be read ({type(error).__name__}: {said})")
