"""`kvarn serve`: a model for programs that speak HTTP.

This process answers HTTP and imports nothing that computes: it answers before the model is loaded.
So options that need such imports are declared only where a command line has one of them.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.draft.base import NGRAM
from ...runtime.home import home
from ...runtime.loading.default_model import usual_model_path
from ...system.errors import KvarnError
from ...system.extras import require_extra
from ...system.files import disk_free
from ...system.spelling import as_flag
from ...system.terminal import say
from ...system.values import n_bytes
from ..options.address import add_address_options, check_open, keys_from
from ..options.draft_options import add_draft_options, draft_words
from ..options.model_options import (
    adapters_from,
    add_ctx_option,
    add_model_options,
    check_placement,
)
from ..options.values import argument_type, positive

if TYPE_CHECKING:
    from ...serve.settings import Settings
    from ..parsing.parser import Parser

_CACHE_SHARE = 10
"""Of the free disk, a tenth is for what was read, unless told."""
_CACHE_MOST = 32 << 30
_METHOD = "auto"
"""How answers attend unless told."""
_MODEL_WORDS = ("device", "kv_on", "lora")


def add(parser: Parser) -> None:
    parser.description = (
        "Answer programs over HTTP: OpenAI's, Anthropic's and Ollama's APIs. A text that was read "
        "once is not read again."
    )
    _add_server(parser)
    add_model_options(parser, with_device=True)
    group = parser.add_argument_group("context")
    add_ctx_option(
        group,
        "room for N tokens in each request, as 8192 or 128K (default: the model's training "
        "length, or what fits in memory)",
        default=0,
    )
    group.add_argument(
        "-np",
        "--parallel",
        metavar="N",
        type=positive,
        default=4,
        help="generate N answers at the same time (default %(default)s)",
    )
    group.add_argument(
        "--cache-size",
        metavar="BYTES",
        type=argument_type(n_bytes),
        help="keep what was read in at most so many bytes of disk, as 20G; 0 keeps it in memory "
        "only (default: a tenth of what is free, at most 32G)",
    )
    add_draft_options(parser, "while one or two answers are generated, ")
    parser.later = _add_context


def _add_server(parser: Parser) -> None:
    group = parser.add_argument_group("server")
    add_address_options(group)
    keys = group.add_mutually_exclusive_group()
    keys.add_argument(
        "--api-key",
        metavar="KEY",
        action="append",
        help="requests have to name this key; may be repeated",
    )
    keys.add_argument(
        "--api-key-file", metavar="FILE", type=Path, help="the same for each line of FILE"
    )
    keys.add_argument(
        "--no-auth", action="store_true", help="with another --host, take requests without a key"
    )


def _add_context(parser: Parser) -> None:
    """Adds what requests ask of a context unless they say otherwise."""
    context: Any = import_module("..options.context", __package__)  # imports NumPy
    group = parser.add_argument_group("requests", "unless a request says otherwise")
    context.add_kv_type_option(group)
    context.add_keep_options(parser, group)
    context.add_attend_options(parser, _METHOD)
    context.add_prefill_options(parser)


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    client: Any = import_module("...runtime.serving.client", __package__)
    server: Any = import_module("...serve.running", __package__)
    engine = client.EngineClient(settings.start(), say, on_failure=_end)
    server.serve(settings, engine, tell=engine.announce)
    if engine.facts is None and engine.reason:
        raise KvarnError(engine.reason)
    return 0


def _end() -> None:
    """End the server, as SIGTERM does."""
    signal.raise_signal(signal.SIGTERM)


def settings_from(options: argparse.Namespace) -> Settings:
    """What the options ask for. Raises `KvarnError` for what has no effect, or is missing."""
    with require_extra("serve", "kvarn serve"):
        module: Any = import_module("...serve.settings", __package__)
        import_module("uvicorn"), import_module("starlette")
    keys = keys_from(options.api_key, options.api_key_file)
    advice = "give --api-key KEY, or --no-auth to let everybody"
    check_open("--host", options.host, bool(keys or options.no_auth), advice)
    check_placement(options.device, options.kv_on)
    words = _words(vars(options))
    if lora := adapters_from(options):
        words["lora"] = [f"{adapter.path.absolute()}:{adapter.scale!r}" for adapter in lora]
    words |= _draft(options)
    cache = home() / "serve"
    settings: Settings = module.Settings(
        model=_model(options),
        cache_path=cache,
        cache_bytes=_cache_bytes(cache) if options.cache_size is None else options.cache_size,
        host=options.host,
        port=options.port,
        keys=keys,
        n_ctx=options.ctx,
        parallel=options.parallel,
        threads=options.threads or 0,
        words=words,
        log=options.log,
    )
    return settings


def _words(given: Mapping[str, Any]) -> dict[str, Any]:
    """The words about contexts and devices among the options, as text."""
    device = {"device": given["device"], "kv_on": given["kv_on"]}
    words = {word: x for word, x in device.items() if x not in (None, "cpu")}
    if "method" not in given:  # no option of `_add_context` was needed
        return {**words, "method": _METHOD}
    request: Any = import_module("...runtime.context.planning.request", __package__)
    known = request.context_words().keys() - {*_MODEL_WORDS, "ctx", "store", "pack", "io"}
    for word in sorted(known & given.keys()):
        if (value := given[word]) is not None:
            words[word] = "/".join(value) if isinstance(value, tuple) else _plain(value)
    words.setdefault("method", _METHOD)
    request.ContextRequest.of({**given, **words, "kv_type": given["kv_type"]}, as_flag)
    return words


def _plain(value: Any) -> Any:
    """A value that a message can hold."""
    return value if isinstance(value, int | float | str) else str(value)


def _model(options: argparse.Namespace) -> Path:
    """The model's file. One that a repository or a package has is pulled first. Links are not
    followed: files of the hub have their names from them."""
    if options.hf is not None or not (options.model is None or options.model.exists()):
        model: Any = import_module("..options.model", __package__)
        path: Path = model.ModelRequest.of(options).file()
        return path.absolute()
    return Path(options.model or usual_model_path(say)).absolute()


def _draft(options: argparse.Namespace) -> dict[str, Any]:
    """The words about drafts among the options, checked; a model is named by its path, and pulled
    first where a package has it."""
    words = draft_words(options)
    if words not in ({}, {"draft": NGRAM}):  # whose check imports NumPy
        drafting: Any = import_module("..options.drafting", __package__)
        request = drafting.draft_from(options)
        if request is not None and request.file is not None:
            words["draft"] = str(request.file.path.absolute())
    return words


def _cache_bytes(folder: Path) -> int:
    """The default of `--cache-size`."""
    return min(disk_free(folder) // _CACHE_SHARE, _CACHE_MOST)
