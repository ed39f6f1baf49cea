"""Options that name a model, shared by the commands that load one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.home import remember_model, remember_pull
from ...runtime.loading.default_model import usual_model_path
from ...runtime.loading.devices import DEVICES, KV_ON
from ...runtime.pack_links import model_of
from ...system.errors import KvarnError
from ...system.extras import how_to_install
from ...system.terminal import say
from ...system.text import one_line, shown
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import byte_bar
from .values import NO_MODEL, file_path, positive

if TYPE_CHECKING:
    from ...convert.hub import Pulled
    from ...runtime.store.facts import PackHead


def add_model_options(parser: argparse.ArgumentParser, with_device: bool = False) -> None:
    """Adds the model in its three forms (MODEL, `-m`, `-hf`) and `--threads`.

    with_device: adds `--device` and `--kv-on`, too, for commands that can run a model on a GPU.
    """
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=model_word,
        default=argparse.SUPPRESS,  # without the word, the path of -m stays
        help="a GGUF file (default: the one converted or pulled last, or else the small one that "
        "ships with kvarn)",
    )
    which.add_argument("-m", "--model", metavar="FILE", type=Path, help="the same as MODEL")
    which.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        dest="hf",
        metavar="USER/REPO[:QUANT]",
        help="a GGUF file of the Hugging Face hub, downloaded if it is not on this machine "
        "(default QUANT: the largest that suits this machine)",
    )
    group.add_argument(
        "-t",
        "--threads",
        metavar="N",
        type=positive,
        help="kernel threads (default: one per physical core)",
    )
    if with_device:
        group.add_argument(
            "--device",
            choices=DEVICES,
            default="cpu",
            help="where the model runs: on the CPU (default), or on an NVIDIA GPU, in whose memory "
            f"its weights have to fit (cuda; needs {how_to_install('cuda')})",
        )
        group.add_argument(
            "--kv-on",
            choices=KV_ON,
            help="with --device cuda, where the KV cache is: in the GPU's memory (gpu), in the "
            "host's memory, where the CPU attends to it (host), or on the GPU if it fits there and "
            "the methods support it (auto, the default)",
        )
    # Options that users of llama.cpp write by habit, and that ask for what kvarn does anyway.
    group.add_argument(
        "-ngl", "--gpu-layers", "--n-gpu-layers", type=_no_gpu, help=argparse.SUPPRESS
    )
    group.add_argument(
        "-fa", "--flash-attn", nargs="?", type=_flash_attention, help=argparse.SUPPRESS
    )


def model_word(text: str) -> Path:
    """An argparse type: a model file among the words, which may be another word by mistake."""
    path = file_path(text)
    if path.exists() or path.suffix == ".gguf":
        return path
    fix = NO_MODEL
    if text.count("/") == 1:
        fix = f"for a model of the Hugging Face hub, use -hf {one_line(text, 64)}"
    raise argparse.ArgumentTypeError(f"there is no file {shown(text)}: {fix}")


def _no_gpu(text: str) -> str:
    if text != "0":
        raise argparse.ArgumentTypeError(
            "kvarn puts all layers on one device: omit it, and give --device cuda for a GPU"
        )
    return text


def _flash_attention(text: str) -> str:
    if text in ("on", "auto", "1"):
        return text
    words = "kvarn always computes attention this way: omit it"
    if text in ("off", "0"):
        raise argparse.ArgumentTypeError(words)
    raise argparse.ArgumentTypeError(f"expected on or auto, found {shown(text)}; {words}")


@dataclass(frozen=True)
class ModelRequest:
    """The model that options name, None where they name none, and what computes it."""

    path: Path | None
    hub: str | None
    threads: int | None
    device: str = "cpu"
    kv_on: str = "auto"

    @classmethod
    def of(cls, options: argparse.Namespace) -> ModelRequest:
        """Made once, before anything is read or loaded. Raises `KvarnError` for `--kv-on` without
        a GPU."""
        device, kv_on = getattr(options, "device", "cpu"), getattr(options, "kv_on", None)
        if kv_on not in (None, "auto") and device == "cpu":
            raise KvarnError(f"--kv-on {kv_on} has no effect without --device cuda: give both")
        return cls(options.model, options.hf, options.threads, device, kv_on or "auto")

    @property
    def is_named(self) -> bool:
        """Whether options name a model."""
        return self.path is not None or self.hub is not None

    def file(self, pack: PackHead | None = None) -> Path:
        """The file of the model, pulled if need be. Where none is named: that of the pack which the
        context begins with, or else the usual one; a line says which."""
        path = self.path if self.hub is None else _hub_model(self.hub)
        if path is None and pack is not None:
            path = _model_of(pack)
            say(f"using the model of the pack: {path}")
        if path is None:
            return usual_model_path(say)
        if not path.exists():
            raise KvarnError(f"no such file: {path}; `kvarn ls` lists the models on this machine")
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
    from ...convert.hub import pulled_before

    repo, quantisation = _parts(name)
    model = pulled_before(repo, quantisation) or pull_repository(name, file=quantisation).model
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
) -> Pulled:
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
        raise KvarnError(f"{name} names the file already: omit --file, --include and --exclude")
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
        remember_model(pulled.model, "pulled")
    return pulled


def _parts(name: str) -> tuple[str, str]:
    """USER/REPO:QUANT → repository and quantisation, which may be ""."""
    repo, _, quantisation = name.rpartition(":")
    return (name, "") if not repo or "/" in quantisation else (repo, quantisation)
