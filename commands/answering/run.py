"""`kvarn run`: read a prompt, write what the model says next."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.store import Disk
from ...system.errors import KvarnError, WrongUsage
from ...system.files import write_file
from ...system.terminal import generate, say
from .. import REAL_MODEL
from ..notices import (
    tell_of_base_model,
    tell_of_control_tokens,
    tell_of_limit,
    tell_of_plain_prompt,
)
from ..opening import Workload, load_draft, load_model, open_context
from ..options.context import add_context_options, add_kv_option, add_pack_options, request_from
from ..options.draft_options import add_draft_options
from ..options.drafting import draft_from
from ..options.files import add_prompt_files_option, check_output, check_recording, prompt_from
from ..options.generation import (
    add_max_tokens_option,
    add_sampling_options,
    add_system_option,
    sampling_from,
)
from ..options.model import ModelRequest
from ..options.model_options import add_model_options
from ..options.values import utf8
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import ReadingBar, index_context

if TYPE_CHECKING:
    from ...runtime.context import Context
    from ...runtime.context.generation import Generation
    from ...runtime.model import Model
    from ...runtime.store import Store
    from ..parsing.parser import Parser

DEFAULT_PROMPT = "It was a bright cold morning, and"
_BESIDE_TEXT = 8
"""Tokens of a prompt, at most, that are none of its bytes: BOS, a leading space."""
_SHOWN = 400
"""Characters of a prompt's end that a terminal shows before what follows."""


def add(parser: Parser) -> None:
    parser.description = (
        "Read a prompt and write the text that follows to stdout. Everything else "
        "(progress, statistics) goes to stderr."
    )
    _add_prompt(parser)
    parser.add_argument("--stats", action="store_true", help="print speed and memory to stderr")
    parser.add_argument(
        "--stats-json", metavar="FILE", type=Path, help="write speed and memory to FILE, as JSON"
    )
    parser.add_argument(
        "--record-selections",
        metavar="FILE",
        type=Path,
        help="write which tokens were read to FILE, for `kvarn lens`",
    )
    add_model_options(parser, with_device=True)
    context = add_context_options(parser)
    add_kv_option(context, "the next run reads its prompt only from the first token that differs")
    add_pack_options(parser)
    add_sampling_options(parser)
    add_draft_options(parser)


def _add_prompt(parser: Parser) -> None:
    """The prompt, how it is read, and how many tokens follow."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", metavar="TEXT", type=utf8, help="the prompt")
    add_prompt_files_option(
        prompt,
        "read the prompt from FILE (a text, PDF, Word, EPUB or HTML file, or a folder of them; may "
        "be repeated), without its last line break; from standard input with -f - or just -",
    )
    parser.dash = "-f"
    add_max_tokens_option(
        parser,
        128,
        "generate at most N tokens (default 128; -1: until the model or the context ends)",
    )
    parser.add_argument(
        "--instruct",
        action="store_true",
        help="send the prompt as a user's message through the model's chat template",
    )
    add_system_option(parser, "a system message before it (with --instruct)")
    parser.add_argument(
        "--special",
        action="store_true",
        help="read control tokens that the prompt spells out as such (default: as text)",
    )
    parser.add_argument(
        "--display-prompt",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="at a terminal, write the prompt before the text (default)",
    )


def run(options: argparse.Namespace) -> int:
    if options.system is not None and not options.instruct:
        raise WrongUsage("--system has no effect without --instruct")
    if options.special and options.instruct:
        raise WrongUsage("--special has no effect with --instruct: what a message says is text")
    source, request = ModelRequest.of(options), request_from(options)
    record, files = options.record_selections, options.files or ()
    check_recording(record, request.attend, source.path, *files)
    check_output(options.stats_json, source.path, *files)
    sampling, drafting = sampling_from(options), draft_from(options)
    head = request.store.head()
    prompt = _prompt(options, head is not None and head.n_tokens > 0, source.is_named)
    work = Workload.of(request)
    model = load_model(source, work, head, compiles=False, draft=drafting)
    draft = load_draft(drafting)
    text = prompt
    if prompt is not None and options.instruct:
        text = _as_message(model, prompt, options.system)
    n_prompt = len((text or "").encode("utf-8", "surrogatepass")) + _BESIDE_TEXT
    with _on_ctrl_c(request.store), open_context(source, model, request, n_prompt) as context:
        if draft is not None:
            draft.prepare(context)
        if text is not None:
            tell = partial(_tell_of_prompt, options, model, text)
            _read(context, text, request.store.follows_pack, options.special, tell)
        elif head is not None:
            index_context(context)
            say(f"no prompt: continuing after the {len(context.tokens):,} tokens of {head.path}")
        if prompt and options.display_prompt and not options.instruct and sys.stdout.isatty():
            generate(prompt if len(prompt) <= _SHOWN else f"… {prompt[-_SHOWN:]}")
        sampler = model.sampler(**sampling)
        generation = context.generation((), options.max_tokens, sampler, options.stop, draft)
        with nullcontext() if record is None else context.recording(record):
            _write(generation)
        _report(options, model, context, generation)
    return 0


def _on_ctrl_c(store: Store) -> AbstractContextManager[None]:
    """After Ctrl-C, says how many tokens the folder of `--kv` keeps."""
    if not isinstance(store, Disk) or store.read_only:
        return nullcontext()

    return on_ctrl_c(
        lambda: f"stopped: {store.path} keeps {store.n_saved:,} tokens, which are not read again"
    )


def _read(
    context: Context, text: str, after_pack: bool, special: bool, tell: Callable[[], None]
) -> None:
    """Read the prompt: after a pack, or from where it differs from what `--kv DIR` holds. tell:
    called before that, unless the prompt is refused."""
    from ...runtime.context.reading.prompt import prompt_ids

    ids = prompt_ids(context.model.tokenizer, text, begins=not after_pack, special=special)
    if not after_pack:
        ids = ids[context.cut_to_prompt(ids) :]
    context.reader.check(ids)
    tell()
    index_context(context)
    with closing(ReadingBar("reading", len(context.tokens), context.stats)) as progress:
        context.prefill(ids, progress)


def _write(generation: Generation) -> None:
    """Write the text as it is generated, and why it ended early."""
    for piece in generation.pieces():
        generate(piece)
    if sys.stdout.isatty():
        generate("\n")
    tell_of_limit(generation.finish, generation.n_tokens)


def _prompt(options: argparse.Namespace, goes_on: bool, names_model: bool) -> str | None:
    """The prompt; None where a pack, or what `--kv DIR` holds, goes on without one."""
    if options.prompt is not None:
        return str(options.prompt)
    if options.files is not None:
        return prompt_from(options)
    if not options.instruct:
        if goes_on:
            return None
        if not names_model:
            return DEFAULT_PROMPT
    raise WrongUsage(
        "no prompt: give one with -p TEXT, -f FILE or - (stdin), or talk with `kvarn chat`"
    )


def _tell_of_prompt(options: argparse.Namespace, model: Model, prompt: str) -> None:
    """What the user may not expect of how the prompt is read."""
    if options.instruct:
        tell_of_base_model(model)
        return
    tell_of_plain_prompt(model)
    if not options.special:
        tell_of_control_tokens(model, prompt)


def _as_message(model: Model, text: str, system: str | None) -> str:
    """What the chat template makes of a prompt."""
    template = model.chat_template
    if template is None:
        raise KvarnError(
            f"{model.name} has no chat template and was probably not trained to answer: omit "
            f"--instruct to have it continue the prompt, or `kvarn chat -hf {REAL_MODEL}` gets a "
            "model that was"
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    return template.render(messages, add_generation_prompt=True)


def _report(
    options: argparse.Namespace, model: Model, context: Context, generation: Generation
) -> None:
    if options.stats:
        say(str(context.stats))
    if options.stats_json is not None:
        figures = {
            "model": str(model.path),
            "n_ctx": context.n_ctx,
            "finish": generation.finish,
            "kv_bytes": context.n_bytes,
            **context.stats.as_dict(),
        }
        write_file(options.stats_json, (json.dumps(figures, indent=2) + "\n").encode())
