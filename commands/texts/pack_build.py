"""`kvarn pack build` and `kvarn pack index`: what a model computes of a pack."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.documents import joined
from ...runtime.home import pack_path
from ...runtime.memory import human_bytes
from ...runtime.prefill import BlocksPrefill
from ...runtime.store import Disk
from ...system.errors import KvarnError, WrongUsage
from ...system.terminal import say
from ..opening import Workload, load_model
from ..options.cluster import add_ray_options, check_ray_options
from ..options.context import (
    add_attend_options,
    add_kv_type_option,
    add_prefill_options,
    request_from,
)
from ..options.files import add_files_option, add_list_option, documents_from, listed
from ..options.model import ModelRequest
from ..options.model_options import add_ctx_option, add_lora_option, add_model_options
from ..options.values import file_name
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import ReadingBar, progress_bar

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.context import Context
    from ...runtime.model import Model
    from ...runtime.store.facts import PackInfo

NAME_HELP = "a name among your packs (in KVARN_HOME), or a path with a /"
BUILDING = (
    "Read files, one after the other as one text, into a pack; of several, each below its name. If "
    "interrupted, run the same command to resume."
)
INDEXING = (
    "Store the index by which --method chooses tokens in a pack. Without it, each command that "
    "opens the pack first makes the index in memory. `pack build --method` does the same after "
    "reading."
)


def add_build(build: argparse.ArgumentParser) -> None:
    """The options of `pack build`."""
    files = build.add_mutually_exclusive_group(required=True)
    add_files_option(
        files,
        "texts, PDF, Word, EPUB and HTML files, and folders of them, in this order",
        required=False,
    )
    add_list_option(files)
    build.add_argument(
        "-o", "--output", metavar="NAME", type=file_name, required=True, help=NAME_HELP
    )
    build.add_argument(
        "--each",
        action="store_true",
        help="a pack for each file, named like it, in the folder -o; the same command may run "
        "several times at once, on machines that share the folder, too",
    )
    build.add_argument(
        "--each-block",
        action="store_true",
        help="with --prefill blocks: read one block after another that no other process reads; run "
        "the same command several times at once, on machines that share the pack's folder, too",
    )
    add_ray_options(build, "with --each, or --each-block in a folder that they share, read")
    add_ctx_option(
        build, "most tokens of the text (default, and for 0: the model's training length)"
    )
    add_model_options(build, with_device=True)
    add_kv_type_option(build)
    add_attend_options(build)
    add_prefill_options(build)


def add_index(index: argparse.ArgumentParser) -> None:
    """The options of `pack index`."""
    index.add_argument("name", metavar="NAME", type=file_name, help=NAME_HELP)
    add_ctx_option(
        index, "the size of the contexts that will open it (default: that of `kvarn run`)"
    )
    add_model_options(index)
    add_lora_option(index)
    add_attend_options(index)


def build(options: argparse.Namespace) -> int:
    if options.files_from is not None:
        options.files = listed(options.files_from)
    if options.each_block and options.each:
        raise WrongUsage("--each-block reads the blocks of one text: omit --each")
    check_ray_options(options)
    if options.ray is not None and options.each:
        from .pack_cluster import build_each_on_ray

        return build_each_on_ray(options)
    if options.ray is not None and not options.each_block:
        raise WrongUsage(
            "--ray reads many texts, or the blocks of one: give --each or --each-block"
        )
    if options.each:
        from .pack_each import build_each

        return build_each(options)
    return _build_one(options)


def _build_one(options: argparse.Namespace) -> int:
    """One pack of all files."""
    from ...runtime.context.reading.prompt import prompt_ids
    from ...runtime.packs.blocks import build_pack_in_blocks, check_size, retry_while_busy
    from ...runtime.packs.pack import build_pack

    source, request = ModelRequest.of(options), request_from(options)
    store = Disk(pack_path(options.output), *(options.kv_type or ()))
    head, prefill, documents = store.head(), request.prefill, documents_from(options)
    if options.each_block:
        if not isinstance(prefill, BlocksPrefill):
            raise WrongUsage("--each-block reads the blocks of a text: add --prefill blocks:N")
        check_size(prefill)
    if not any(document.text.strip() for document in documents):
        raise KvarnError("nothing to read: the files are empty")
    if options.ray is not None and isinstance(prefill, BlocksPrefill):
        from .pack_cluster import build_blocks_on_ray

        return build_blocks_on_ray(options, prefill, joined(documents))
    work = Workload(store.types(), [request.attend], prefills=[prefill] if prefill else [])
    model = load_model(source, work, head)
    ids = prompt_ids(model.tokenizer, joined(documents))
    bar = ReadingBar("reading")

    def opened(context: Context) -> None:
        for line in filter(None, (*context.plan.notices, context.where)):
            say(line)
        bar.begin(len(context.tokens), context.stats)

    def begin(name: str, context: Context) -> ReadingBar:
        nonlocal bar
        bar.close()
        bar = ReadingBar(name, len(context.tokens), context.stats)
        return bar

    def read() -> tuple[PackInfo, int]:
        """The pack, and how many tokens this process has read."""
        if options.each_block and isinstance(prefill, BlocksPrefill):
            return build_pack_in_blocks(model, store, ids, prefill, request.n_ctx, begin)
        info = build_pack(model, store, ids, request.n_ctx, prefill, bar, opened)
        return info, len(ids) - bar.n_before

    began = time.perf_counter()
    with on_ctrl_c(lambda: _stopped(store, None if options.each_block else len(ids))):
        try:
            info, n_read = read()
        finally:
            bar.close()
    say(
        f"{store.path}: {info.n_tokens:,} tokens, {human_bytes(info.n_bytes)}, "
        f"{n_read:,} of them read in {time.perf_counter() - began:.1f} s{info.reading}"
    )
    for measured in info.probe:
        say(str(measured))
    if request.attend.selects:
        run = partial(_index, model, Path(store.path), request.attend, request.n_ctx)
        retry_while_busy(run) if options.each_block else run()
    return 0


def _stopped(store: Disk, n_tokens: int | None) -> str:
    """A line about a pack of a text of so many tokens (None: whose blocks were read apart)."""
    progress = "what was read" if n_tokens is None else f"{store.n_saved:,} of {n_tokens:,} tokens"
    return f"stopped: {store.path} keeps {progress}; run the same command to resume"


def index(options: argparse.Namespace) -> int:
    source, request = ModelRequest.of(options), request_from(options)
    path = pack_path(options.name)
    head = Disk(path, read_only=True).head()
    model = load_model(source, Workload(Disk(path).types(), [request.attend]), head)
    _index(model, path, request.attend, request.n_ctx)
    return 0


def _index(model: Model, path: Path, attend: Attend, n_ctx: int | None) -> None:
    from ...runtime.packs.pack import index_pack

    began = time.perf_counter()
    with (
        on_ctrl_c(lambda: f"stopped: {path} is as it was"),
        progress_bar("indexing", "layer") as progress,
    ):
        info = index_pack(model, path, attend, n_ctx, progress)
    indexes = f"indexes of {', '.join(info.index_of)}" if info.indexes else "no index"
    say(
        f"{path}: {indexes}, {human_bytes(info.n_bytes)} in all, "
        f"made in {time.perf_counter() - began:.1f} s"
    )
