"""`kvarn convert`: a Hugging Face model, a PEFT adapter, or a GGUF file, to a GGUF file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...convert.embed import embed_encoders
from ...models.config import refuse_adapter
from ...runtime.attend.encoders.sidecar import sidecar_path
from ...runtime.gguf import open_gguf
from ...runtime.gguf.layout import MAGIC
from ...runtime.home import last_pull
from ...runtime.tokenizer.pretokenizers import PRE_TOKENIZERS
from ...system.errors import KvarnError, WrongUsage
from ...system.terminal import say, show_path
from ..notices import CompilingNotice, tell_of_dropped_encoders
from ..options.model import remember_made
from ..options.values import WEIGHT_TYPES
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import byte_bar

DEFAULT_TYPE = "q8_0"


def add(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "kvarn convert [SRC] OUT.gguf [--type T] [--base MODEL] [--pre NAME] "
        "[--embed-hash [--hash FILE]]"
    )
    parser.description = (
        "Convert the model in folder SRC (safetensors, config.json, tokenizer) to the file "
        "OUT.gguf, which appears when it is complete. Without SRC: the model that was pulled last. "
        "SRC may also be a GGUF file, to change its types or embed hash encoders, or the folder of "
        "an adapter that PEFT saved."
    )
    parser.add_argument(
        "paths", metavar="[SRC] OUT.gguf", nargs="+", type=Path, help="what to read, what to write"
    )
    parser.add_argument(
        "--type",
        metavar="T",
        help=f"type of the weights: {WEIGHT_TYPES} (default {DEFAULT_TYPE}; of an adapter f32)",
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        type=Path,
        help="of an adapter: the model that it was trained on, a folder with config.json or a GGUF "
        "file (default: the folder that adapter_config.json names)",
    )
    parser.add_argument(
        "--pre",
        metavar="NAME",
        help="the vocabulary's pre-tokenizer, if kvarn cannot recognise it: "
        + ", ".join(sorted(PRE_TOKENIZERS)),
    )
    parser.add_argument(
        "--embed-hash",
        action="store_true",
        help="copy the GGUF file SRC and embed the hash encoders that `kvarn learn` made for it",
    )
    parser.add_argument(
        "--hash",
        metavar="FILE",
        type=Path,
        help="with --embed-hash: the file of the encoders (default: SRC.hash.gguf)",
    )


def run(options: argparse.Namespace) -> int:
    from ...jit.kernel_cache import on_compile

    on_compile(CompilingNotice("encoders"))
    source, name, out = _source_and_out(options.paths)
    if options.hash is not None and not options.embed_hash:
        raise WrongUsage("--hash has no effect without --embed-hash: give both")
    adapter = source.is_dir() and _is_adapter(source)
    if options.base is not None and not adapter:
        raise KvarnError(f"--base has no effect on {source}: it is for the folder of an adapter")
    with on_ctrl_c(lambda: f"stopped: {out} was not written"):
        if source.suffix.lower() == ".gguf":
            _from_gguf(options, source, out)
        elif options.embed_hash:
            raise KvarnError("--embed-hash takes a GGUF file: convert the model first")
        elif adapter:
            _from_adapter(options, source, name, out)
        else:
            _from_folder(options, source, name, out)
    if not adapter:
        remember_made(out, "converted")
    show_path(out)
    return 0


def _source_and_out(paths: list[Path]) -> tuple[Path, str | None, Path]:
    """What to read, what the model is called, the file to write."""
    if len(paths) > 2:
        raise WrongUsage(f"convert takes [SRC] OUT.gguf, found {len(paths)} names")
    out = paths[-1]
    if out.suffix != ".gguf":
        raise WrongUsage(
            f"{out}: expected the name of the file to write, ending in .gguf: kvarn convert SRC "
            "OUT.gguf"
        )
    if len(paths) == 2:
        return paths[0], None, out
    if _is_model(out):
        raise KvarnError(
            f"{out} is a model already; to run it: kvarn run {out}; to change its types: kvarn "
            f"quantize {out} OUT.gguf --type T; to convert another over it: kvarn convert SRC {out}"
        )
    pulled = last_pull()
    if pulled is None:
        raise KvarnError("nothing to convert: give SRC, or pull a model with `kvarn hf-pull`")
    name, source = pulled
    if not source.exists():
        raise KvarnError(
            f"{name} was pulled last, and {source} is gone: pull it again, or give SRC"
        )
    say(f"converting {name}, the last pull ({source}), to {out}")
    return source, name, out


def _is_model(path: Path) -> bool:
    """Whether a GGUF file has this name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _is_adapter(folder: Path) -> bool:
    from ...convert.hf.peft import is_adapter

    return is_adapter(folder)


def _from_folder(options: argparse.Namespace, source: Path, name: str | None, out: Path) -> None:
    from ...convert.hf import convert
    from ...convert.quantize.mixes import mix_of

    mix = mix_of(options.type or DEFAULT_TYPE)
    with byte_bar("converting") as progress:
        convert(source, out, mix, pre=options.pre, name=name, notice=say, progress=progress)


def _from_adapter(options: argparse.Namespace, source: Path, name: str | None, out: Path) -> None:
    from ...convert.hf.peft import convert_adapter
    from ...convert.quantize.mixes import mix_of

    if options.pre is not None:
        raise KvarnError(f"--pre has no effect on {source}: an adapter has no tokenizer")
    mix = mix_of(options.type or "f32")
    with byte_bar("converting") as progress:
        convert_adapter(source, out, mix, options.base, name=name, notice=say, progress=progress)


def _from_gguf(options: argparse.Namespace, source: Path, out: Path) -> None:
    """A copy with other types, or with encoders; one thing at a time."""
    from ...convert.quantize.files import quantise_file
    from ...convert.quantize.mixes import mix_of

    if options.pre is not None:
        raise KvarnError(f"--pre has no effect on {source.name}, which contains its tokenizer")
    if options.embed_hash and options.type is not None:
        raise WrongUsage("--type and --embed-hash are two steps: convert first, then embed")
    if options.embed_hash:
        embed_encoders(source, options.hash or sidecar_path(source), out)
    elif options.type is None:
        with open_gguf(source) as file:
            refuse_adapter(file.metadata)
        raise KvarnError(f"{source} is a GGUF file already: run it as it is, or give --type")
    else:
        with byte_bar("converting") as progress:
            report = quantise_file(source, out, mix_of(options.type), progress=progress)
        tell_of_dropped_encoders(source, report)
