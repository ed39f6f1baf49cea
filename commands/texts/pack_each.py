"""`kvarn pack build --each`: a folder of packs, one for each of many files."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.context.planning.plan import training_notice
from ...runtime.documents import files_in
from ...runtime.home import pack_path
from ...runtime.memory import human_bytes
from ...runtime.store import Disk
from ...system.errors import KvarnError, WrongUsage
from ...system.reading import STDIN
from ...system.terminal import say
from ..opening import Workload, load_model
from ..options.context import request_from
from ..options.model import ModelRequest
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import ReadingBar

if TYPE_CHECKING:
    from ...runtime.context import Context
    from ...runtime.packs.texts import PackOutcome, Text


def build_each(options: argparse.Namespace) -> int:
    """Exit code 1 if a file has no pack at the end; a line says why."""
    from ...runtime.packs.texts import TextFile, build_packs

    files = packs_of(options.files, options.output)
    source, request = ModelRequest.of(options), request_from(options)
    first = Disk(next(iter(files)), *(options.kv_type or ()))
    prefills = [request.prefill] if request.prefill else []
    work = Workload(first.types(), [request.attend], prefills=prefills)
    model = load_model(source, work, first.head())
    if line := training_notice(model, "--ctx", request.n_ctx or 0):
        say(line)
    bar = ReadingBar("reading")

    def begin(path: Path, context: Context) -> ReadingBar:
        nonlocal bar
        bar.close()
        bar = ReadingBar(path.name, len(context.tokens), context.stats)
        return bar

    n_done, n_failed, began = 0, 0, time.perf_counter()
    stopped = f"stopped: {options.output} keeps what was read; run the same command to resume"
    texts: dict[str | Path, Text] = {path: TextFile(file, say) for path, file in files.items()}
    with on_ctrl_c(lambda: stopped):
        try:
            for outcome in build_packs(
                model,
                texts,
                request.n_ctx,
                request.prefill,
                request.attend,
                options.kv_type,
                begin,
                once=True,
            ):
                bar.close()
                n_done += 1
                n_failed += isinstance(outcome.pack, KvarnError)
                say(f"{n_done} of {len(files)}: {describe(outcome, files[outcome.path])}")
        finally:
            bar.close()
    seconds = time.perf_counter() - began
    say(f"{options.output}: {n_done - n_failed} of {n_done} files have a pack, {seconds:.1f} s")
    return int(n_failed > 0)


def packs_of(paths: list[Path], output: str) -> dict[Path, Path]:
    """The file of each pack in the folder `output`. A pack is named like its file without the
    ending; where several files have that name, by its folder and its whole name."""
    if "/" not in output:
        raise WrongUsage(
            f"--each: -o is a folder for many packs, found the name {output}: write ./{output}/"
        )
    files: dict[Path, Path] = {}
    named = files_in(paths)
    stems = Counter(file.stem for file in dict.fromkeys(named))
    for file in named:
        if file == STDIN:
            raise WrongUsage("--each: a text from stdin has no name: give files or folders")
        file.stat()  # or an error, before the model is loaded
        alone = stems[file.stem] == 1
        pack = pack_path(output) / (file.stem if alone else "-".join(file.resolve().parts[-2:]))
        if files.setdefault(pack, file) != file:
            raise KvarnError(f"--each: {files[pack]} and {file} have the same pack: {pack}")
    if not files:
        raise KvarnError("--each: no files: the folders are empty")
    return files


def describe(outcome: PackOutcome, file: Path) -> str:
    """What became of a file."""
    if isinstance(outcome.pack, KvarnError):
        message = str(outcome.pack)
        return message if message.startswith(str(file)) else f"{file}: {message}"
    if Path(outcome.pack.path) != outcome.path:
        return f"{file} has the text of {outcome.pack.path}, which was read before"
    pack, size = outcome.pack, human_bytes(outcome.pack.n_bytes)
    n_read = f"{outcome.n_read:,} of them read{pack.reading}"
    return f"{outcome.path}: {pack.n_tokens:,} tokens, {size}, {n_read}"
