"""`kvarn run`: read a prompt, write what the model says next."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ..system.errors import KvarnError
from ..system.files import write_file
from ..system.reading import STDIN, read_text
from ..system.terminal import generate
from .terminal.notices import notice
from .options.attend import check_recording
from .options.draft import add_draft_options, draft_from
from .options.model import add_context_options, add_model_options, context_from, model_from
from .options.output import check_output
from .options.sampling import add_sampling_options, sampler_from
from .options.store import RAM, add_kv_option, add_pack_options, disk_from, kv_folder, pack_of
from .options.texts import decoded
from .options.values import utf8
from .terminal.progress import bar

if TYPE_CHECKING:
    from ..runtime.context import Context
    from ..runtime.context.generation import Generation
    from ..runtime.model import Model
    from ..runtime.packs import PackInfo

DEFAULT_PROMPT = "It was a bright cold morning, and"


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read a prompt and write the text that follows to stdout. Everything else "
        "(progress, statistics) goes to stderr."
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", metavar="TEXT", type=utf8, help="the prompt")
    prompt.add_argument("-f", "--file", metavar="FILE", type=Path, help="read the prompt from FILE")
    prompt.add_argument("stdin", nargs="?", choices=["-"], help="read the prompt from stdin")
    parser.add_argument(
        "-n",
        "--max-tokens",
        metavar="N",
        type=int,
        default=128,
        help="generate at most N tokens (default 128; -1: until the model or the context ends)",
    )
    parser.add_argument(
        "--instruct",
        action="store_true",
        help="send the prompt as a user's message through the model's chat template",
    )
    parser.add_argument("--stats", action="store_true", help="print speed and memory to stderr")
    parser.add_argument("--stats-json", metavar="FILE", type=Path, help="write them to FILE")
    parser.add_argument(
        "--record-selections",
        metavar="FILE",
        type=Path,
        help="write which tokens were attended to, for `kvarn bench --replay FILE`",
    )
    add_model_options(parser)
    context = add_context_options(parser)
    add_kv_option(context, "where the next prompt is read only from its first difference on")
    add_pack_options(parser)
    add_sampling_options(parser)
    add_draft_options(parser)


def run(options: argparse.Namespace) -> int:
    if options.pack is not None and options.kv != RAM:
        raise KvarnError("--pack and --kv DIR are two places for one KV cache: give one of them")
    check_recording(options)
    check_output(options.stats_json, options.model, options.file)
    sampler, draft = sampler_from(options), draft_from(options)
    text = _prompt(options)
    pack = pack_of(options)
    model = model_from(options)
    if options.instruct:
        text = _as_message(model, text)
    with _context(options, model, pack) as context:
        _read(context, text, after_pack=pack is not None)
        generation = context.generation(
            (), None if options.max_tokens < 0 else options.max_tokens, sampler, options.stop, draft
        )
        record = options.record_selections
        with nullcontext() if record is None else context.recording(record):
            _write(generation)
        _report(options, model, context, generation)
    return 0


def _context(options: argparse.Namespace, model: Model, pack: PackInfo | None) -> Context:
    """The context to read into: empty, or what a pack or `--kv DIR` holds."""
    if pack is not None:
        disk = disk_from(options, pack.path, read_only=True)
        return context_from(options, model, disk, pack.n_tokens)
    folder = kv_folder(options)
    return context_from(options, model, None if folder is None else disk_from(options, folder))


def _read(context: Context, text: str, after_pack: bool) -> None:
    """Read the prompt: after a pack, or from where it differs from what `--kv DIR` holds.

    With a progress bar, on a terminal, where it takes a while.
    """
    tokenizer = context.model.tokenizer
    with bar("reading", "tok") as shown:

        def progress(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        if after_pack:
            bos = tokenizer.bos_id
            ids = tokenizer.encode(text, bos=False, special=True)
            context.prefill(ids[1:] if ids[:1] == [bos] else ids, progress)
        else:
            ids = tokenizer.encode(text, bos=tokenizer.add_bos, special=True)
            context.prefill(ids[context.cut_to_shared(ids) :], progress)


def _write(generation: Generation) -> None:
    """The text as it is generated; a line on stderr if the context became full."""
    for piece in generation.pieces():
        generate(piece)
    if sys.stdout.isatty():
        generate("\n")
    if generation.finish == "context":
        notice(
            f"stopped at a full context of {generation.context.n_ctx} tokens; use a larger --ctx"
        )


def _prompt(options: argparse.Namespace) -> str:
    if options.prompt is not None:
        return str(options.prompt)
    file = STDIN if options.stdin is not None else options.file
    if file is not None:
        return decoded(read_text(file), file)
    if options.model is None:
        return DEFAULT_PROMPT
    raise KvarnError("no prompt: give one with -p TEXT, -f FILE or - (stdin)")


def _as_message(model: Model, text: str) -> str:
    template = model.chat_template
    if template is None:
        raise KvarnError(f"{model.path.name} has no chat template: omit --instruct")
    return template.render([{"role": "user", "content": text}], add_generation_prompt=True)


def _report(
    options: argparse.Namespace, model: Model, context: Context, generation: Generation
) -> None:
    if options.stats:
        notice(str(context.stats))
    if options.stats_json is not None:
        figures = {
            "model": str(model.path),
            "n_ctx": context.n_ctx,
            "finish": generation.finish,
            "kv_bytes": context.n_bytes,
            **context.stats.as_dict(),
        }
        write_file(options.stats_json, (json.dumps(figures, indent=2) + "\n").encode())
