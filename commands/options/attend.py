"""Options that say which tokens a query reads, shared by the commands that open a context."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ...system.errors import KvarnError
from .output import check_output
from .values import file_name, integer

if TYPE_CHECKING:
    from ...runtime.attend import Attend

METHODS = ("full", "topk", "hash")

# Flag, which methods know it, metavar or choices, type, what it does.
_OPTIONS: tuple[tuple[str, tuple[str, ...], Any, Any, str], ...] = (
    ("--budget", METHODS[1:], "N", str, "tokens read per KV head, 1%% of the context or a number"),
    ("--sink", METHODS[1:], "N", integer, "always read the first N tokens (topk 4, hash 128)"),
    ("--window", METHODS[1:], "N", integer, "always read the last N tokens (topk 256, hash 128)"),
    (
        "--budget-unit",
        METHODS[1:],
        ("kv-head", "query-head"),
        str,
        "whose budget it is: shared by the query heads of a KV head (default), or each one's",
    ),
    (
        "--budget-schedule",
        METHODS[1:],
        ("uniform", "linear"),
        str,
        "the same in each layer (default), or rising from first to last at equal total",
    ),
    ("--probe", METHODS[1:], "N", integer, "every N steps measure the softmax mass that was read"),
    ("--index", ("topk",), ("flat", "sketch"), str, "topk: search all keys, or their sketches"),
    (
        "--levels",
        ("topk",),
        "N",
        integer,
        "topk: 2 searches blocks of similar keys first, and the sketches of few (default 1)",
    ),
    (
        "--bits",
        ("hash",),
        "N",
        integer,
        "hash: bits of a signature, 32 or 64 (default: those of the learned encoders, else 32)",
    ),
    (
        "--encoders",
        ("hash",),
        "FILE",
        file_name,
        "hash: a file of `kvarn learn`, or simhash (default: MODEL.hash.gguf beside the model)",
    ),
)


def add_attend_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds `--method` and what the methods know; the group, for more of the kind."""
    group = parser.add_argument_group("attention", "what a generated token reads of the context")
    group.add_argument(
        "--method",
        choices=METHODS,
        default="full",
        help="all of it (default), the largest products q·k, or the nearest signatures",
    )
    for flag, _, values, kind, what in _OPTIONS:
        named: dict[str, Any] = (
            {"metavar": values} if isinstance(values, str) else {"choices": values}
        )
        group.add_argument(flag, type=kind, help=what, **named)
    return group


def attend_from(options: argparse.Namespace) -> Attend:
    """The attend method the options name; `KvarnError` for options that it does not know."""
    from ...runtime.attend import ATTENDS

    given = {}
    for flag, methods, *_ in _OPTIONS:
        name = flag[2:].replace("-", "_")
        value = getattr(options, name)
        if value is None:
            continue
        if options.method not in methods:
            raise KvarnError(
                f"{flag} says nothing to --method {options.method}: it belongs to "
                f"--method {' or '.join(methods)}"
            )
        given[name] = value
    return ATTENDS[options.method](**given)


def attend_of(text: str, common: dict[str, Any]) -> Attend:
    """The method that `text` names: `hash`, or with options of its own `topk:index=flat:sink=8`.

    common: options for those methods that know them and are not told otherwise. Raises `KvarnError`
    for methods and options that there are not.
    """
    from ...runtime.attend import ATTENDS

    method, *settings = text.split(":")
    if method not in METHODS:
        raise KvarnError(f"unknown method {method!r}, expected one of {', '.join(METHODS)}")
    known = {flag[2:]: kind for flag, methods, _, kind, _ in _OPTIONS if method in methods}
    given = {name: value for name, value in common.items() if name.replace("_", "-") in known}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known:
            names = ", ".join(known) or "none"
            raise KvarnError(f"{text}: method {method} has the options {names}, not {name!r}")
        try:
            given[name.replace("-", "_")] = known[name](value)
        except argparse.ArgumentTypeError as error:
            raise KvarnError(f"{text}: {name}: {error}") from error
    return ATTENDS[method](**given)


def check_recording(options: argparse.Namespace) -> None:
    """Refuse `--record-selections` before anything is read where nothing is selected, or the file
    cannot be written."""
    replays = getattr(options, "replay", None) is not None
    if options.record_selections is not None and options.method == "full" and not replays:
        raise KvarnError(
            "--record-selections has nothing to record: --method full attends to all tokens"
        )
    check_output(options.record_selections, options.model, getattr(options, "file", None))
