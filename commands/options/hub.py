"""Models of a hub, named as USER/REPO or USER/REPO:QUANT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.home import remember_model, remember_pull
from ...system.errors import KvarnError
from ..terminal.notices import notice
from ..terminal.progress import byte_bar

if TYPE_CHECKING:
    from ...convert.hub import Pulled


def hub_model(name: str) -> Path:
    """The GGUF file that `-hf` names; pulled, unless it is on this machine."""
    from ...convert.hub import pulled_before

    repo, quantisation = _parts(name)
    model = pulled_before(repo, quantisation) or pull_repository(name, file=quantisation).model
    if model is None:
        raise KvarnError(f"{name}: found no GGUF file, expected one")
    notice(f"using {model.name}")
    return model


def pull_repository(
    name: str,
    *,
    revision: str = "main",
    file: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    to: Path | None = None,
) -> Pulled:
    """Pull what `name` means, as `convert.hub.pull` does, and remember it as the last model."""
    import logging

    import huggingface_hub.utils.logging  # noqa: F401 (gives its logger a handler of its own)

    from ...convert.hub import pull

    logger = logging.getLogger("huggingface_hub")
    logger.setLevel(logging.ERROR)  # warnings are told in words
    logger.handlers.clear()  # names of the hub's take kvarn's way to the terminal
    logger.propagate = True

    repo, quantisation = _parts(name)
    if quantisation and (include or exclude or file not in (None, quantisation)):
        raise KvarnError(f"{name} names the file already: omit --file, --include and --exclude")
    try:
        pulled = pull(
            repo,
            revision=revision,
            include=include,
            exclude=exclude,
            file=quantisation or file,
            to=to,
            notice=notice,
            progress=byte_bar,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "stopped: files that are whole are kept; the same command pulls the rest"
        ) from None
    remember_pull(pulled.repo, pulled.model or pulled.folder)
    if pulled.model is not None:
        remember_model(pulled.model, "pulled")
    return pulled


def _parts(name: str) -> tuple[str, str]:
    """USER/REPO:QUANT → repository and quantisation, which may be ""."""
    repo, _, quantisation = name.rpartition(":")
    return (name, "") if not repo or "/" in quantisation else (repo, quantisation)
