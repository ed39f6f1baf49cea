"""`kvarn convert`: a Hugging Face model to a GGUF file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..ops.errors import KvarnError
from .model_options import CompileNotice, notice

DEFAULT_TYPE = "q8_0"


def add(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "convert",
        help="convert a Hugging Face model to GGUF",
        usage="kvarn convert [SRC] OUT.gguf [--type T] [--pre NAME]",
        description="Convert the model in folder SRC (safetensors, config.json, tokenizer), or the "
        "one that was pulled last, to the file OUT.gguf, which appears when it is whole.",
    )
    parser.add_argument("paths", metavar="[SRC] OUT.gguf", nargs="+", type=Path)
    parser.add_argument(
        "--type",
        metavar="T",
        default=DEFAULT_TYPE,
        help="type of the weights: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, q2_k, "
        "q3_k_s, q3_k_m, q3_k_l, q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k (default %(default)s)",
    )
    parser.add_argument(
        "--pre",
        metavar="NAME",
        help="the vocabulary's pre-tokenizer, where its ids do not tell (llama-bpe, qwen2, …)",
    )


def run(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from ..convert.hf import convert
    from ..convert.quantize.mixes import mix_of
    from ..ops.cache import on_compile
    from ..runtime.home import remember_model

    on_compile(CompileNotice())
    mix = mix_of(options.type)
    source, name, out = _source_and_out(options.paths)
    bar = tqdm(
        desc="converting",
        unit="B",
        unit_scale=True,
        delay=1.0,
        leave=False,
        file=sys.stderr,
        disable=None,
    )

    def progress(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    with bar:
        convert(source, out, mix, pre=options.pre, name=name, notice=notice, progress=progress)
    remember_model(out)
    print(out)
    return 0


def _source_and_out(paths: list[Path]) -> tuple[Path, str | None, Path]:
    """The folder to read, what its model is called, the file to write."""
    from ..runtime.home import last_pull

    if len(paths) > 2:
        raise KvarnError(f"convert takes [SRC] OUT.gguf, found {len(paths)} names")
    out = paths[-1]
    if out.suffix != ".gguf":
        raise KvarnError(f"{out}: expected the name of the file to write, ending in .gguf")
    if len(paths) == 2:
        source, name = paths[0], None
    else:
        pulled = last_pull()
        if pulled is None:
            raise KvarnError("nothing to convert: give SRC, or pull a model with `kvarn hf-pull`")
        name, source = pulled
        notice(f"converting the last pull, {name}")
    if source.suffix == ".gguf":
        raise KvarnError(
            f"{source} is a GGUF file already: run it as it is, or see `kvarn quantize` for "
            "another type"
        )
    return source, name, out
