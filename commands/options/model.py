"""Options that name a model, shared by the commands that load one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.loading.default_model import usual_model_path
from ...runtime.loading.devices import DEVICES, KV_ON, card_for
from ...runtime.loading.load import load
from ...runtime.prefill import for_questions, recorded
from ...runtime.rehearsal import rehearsals
from ...system.errors import KvarnError
from ...system.extras import how_to_install
from ...system.text import one_line, shown
from ..terminal.compiling import FirstUse
from ..terminal.notices import notice
from .attend import attend_from
from .context import ROOM
from .hub import hub_model
from .keep import keep_from
from .prefill import follows_pack, prefill_from
from .values import NO_MODEL, calling, file_path, positive

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.model import Model
    from ...runtime.prefill import Prefill
    from ...runtime.rehearsal import Rehearsal
    from ...runtime.store import Disk


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the model in its three forms (MODEL, `-m`, `-hf`) and what computes it."""
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=model_word,
        action=calling(_store_given),
        help="a GGUF file (default: the one converted or pulled last, or the small one of kvarn)",
    )
    which.add_argument("-m", "--model", metavar="FILE", type=Path, help="the same")
    which.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        dest="hf",
        metavar="USER/REPO[:QUANT]",
        help="a GGUF file of the Hugging Face hub, pulled if need be "
        "(default QUANT: the largest that suits this machine)",
    )
    group.add_argument(
        "-t",
        "--threads",
        metavar="N",
        type=positive,
        help="kernel threads (default: one per physical core)",
    )
    # What llama.cpp's users write by habit, where it asks for what kvarn does anyway.
    group.add_argument(
        "-ngl", "--gpu-layers", "--n-gpu-layers", type=_no_gpu, help=argparse.SUPPRESS
    )
    group.add_argument(
        "-fa", "--flash-attn", nargs="?", type=_flash_attention, help=argparse.SUPPRESS
    )


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--device` and `--kv-on`, for commands whose model may compute elsewhere than on the
    CPU."""
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="what computes: cpu (default), or cuda: an NVIDIA GPU, which has the model's matrices "
        f"in its memory (needs {how_to_install('cuda')})",
    )
    parser.add_argument(
        "--kv-on",
        choices=KV_ON,
        default="auto",
        help="with --device cuda, where the KV cache is: on the GPU, in the host's memory (the CPU "
        "attends to it), or on the GPU if it fits and the methods are served there (auto)",
    )


def _store_given(namespace: argparse.Namespace, path: Path | None) -> None:
    """Where the word is missing, what `-m` says stays."""
    if path is not None:
        namespace.model = path


def model_word(text: str) -> Path:
    """An argparse type: a model file among the words, which may be another word by mistake."""
    path = file_path(text)
    if path.exists() or path.suffix == ".gguf":
        return path
    mend = NO_MODEL
    if text.count("/") == 1:
        mend = f"for a model of the Hugging Face hub, use -hf {one_line(text, 64)}"
    raise argparse.ArgumentTypeError(f"there is no file {shown(text)}: {mend}")


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


def model_from(
    options: argparse.Namespace,
    disk: Disk | None = None,
    attends: Sequence[Attend] = (),
    prefills: Sequence[Prefill] = (),
    ahead: bool = True,
) -> Model:
    """The model that the options name; where they name none, says which it is.

    disk: where the KV cache of its contexts will be, if it is not in memory. attends, prefills:
    what they will have where that is not one value of `--method` and `--prefill`. ahead: whether to
    compile what they need; else `compile_ahead` does, once it is clear that they can be opened.
    """
    from ...jit.kernel_cache import on_compile

    device, kv_on = getattr(options, "device", "cpu"), getattr(options, "kv_on", "auto")
    if kv_on != "auto" and device == "cpu":
        raise KvarnError(f"--kv-on {kv_on} has no effect without --device cuda: give both")
    card_for(device)  # before a model is pulled, or kernels compiled
    path = model_path(options)
    first_use = FirstUse(_rehearsals(options, path, disk, attends, prefills))
    on_compile(first_use)
    model = load(path, threads=options.threads, notice=notice, device=device, kv_on=kv_on)
    if ahead and device == "cpu":
        first_use.begin(model)
    return model


def compile_ahead(options: argparse.Namespace, model: Model, disk: Disk | None) -> None:
    """Compile what a context on the CPU needs, before it reads anything."""
    from ...jit.kernel_cache import on_compile

    if options.device == "cpu":
        first_use = FirstUse(_rehearsals(options, model.path, disk))
        on_compile(first_use)
        first_use.begin(model)


def _rehearsals(
    options: argparse.Namespace,
    path: Path,
    disk: Disk | None,
    attends: Sequence[Attend] = (),
    prefills: Sequence[Prefill] = (),
) -> list[Rehearsal]:
    """What contexts of these options do: see `model_from`."""
    types = getattr(options, "kv_type", None) or ("f16", "f16")
    one = isinstance(getattr(options, "method", None), str)
    methods = [attend_from(options)] if one else attends
    keeps = [keep_from(options)] if isinstance(getattr(options, "keep", None), str) else []
    prefills = _prefills(options, methods, disk) or prefills
    return rehearsals(path, disk.types() if disk else types, methods, keeps, prefills)


def _prefills(
    options: argparse.Namespace, attends: Sequence[Attend], disk: Disk | None
) -> list[Prefill]:
    """How prompts may be read: as the options say, as questions about a pack are, or as what is on
    disk was read.

    Nothing where a command has no `--prefill`, or one that names several methods.
    """
    if isinstance(getattr(options, "prefill", []), list):
        return []
    named = prefill_from(options)
    if named is not None or disk is None:
        return [named] if named else []
    if follows_pack(disk):
        return [for_questions(attend, keep_from(options), ROOM) for attend in attends]
    return [recorded(disk.recorded_prefill())]


def model_path(options: argparse.Namespace) -> Path:
    """The file of the model that the options name, which is pulled if need be."""
    if options.hf is not None:
        options.model = hub_model(options.hf)
    path: Path | None = options.model
    if path is None:
        return usual_model_path(notice)
    if not path.exists():
        raise KvarnError(f"no such file: {path}; `kvarn ls` lists the models on this machine")
    return path


def names_model(options: argparse.Namespace) -> bool:
    """Whether the options name a model."""
    return options.model is not None or options.hf is not None
