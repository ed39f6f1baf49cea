"""Options of commands that open a context, and the request that they make."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...ops.attention.layout import KV_TYPES
from ...runtime.axes import ATTEND_AXIS, KEEP_AXIS, PREFILL_AXIS, Axis
from ...runtime.context.planning.request import ContextRequest, kv_types
from ...runtime.keep import KEEPS
from ...runtime.methods import Kind, Method
from ...runtime.shards.method import CHOICES
from ...runtime.store import Disk, Ram
from ...system.spelling import as_flag
from ...system.text import shown
from ..parsing.rare import USUAL, mark_rare
from .address import add_token_options
from .model_options import add_ctx_option
from .values import argument_type, count, file_name

M = TypeVar("M", bound=Method)

_TYPES: Mapping[Kind, Callable[[str], Any]] = {int: count, Path: file_name}


def request_from(options: argparse.Namespace) -> ContextRequest:
    """The context that the options ask for, made once, before anything is read or loaded.

    Raises `KvarnError` for options that have no effect together, or exclude each other.
    """
    return ContextRequest.of(vars(options), as_flag)


def add_context_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds `--ctx`, `--kv-type` and the methods' options. Returns the group, for related ones."""
    group = parser.add_argument_group("context")
    add_ctx_option(
        group,
        "room for N tokens, as 8192, 128K or 1M (default: the model's training length, or "
        "what fits in memory; 0: the training length)",
    )
    add_kv_type_option(group)
    add_keep_options(parser, group)
    add_attend_options(parser)
    add_prefill_options(parser)
    return group


def add_attend_options(
    parser: argparse.ArgumentParser, default: str = ATTEND_AXIS.default
) -> argparse._ArgumentGroup:
    """Adds `--method`, which the command takes for `default` where none is given, and the options
    of the methods. Returns the group, for related options."""
    group = parser.add_argument_group(
        "attention", "which tokens of the context a generated token reads"
    )
    add_axis(parser, group, replace(ATTEND_AXIS, default=default), "which tokens it reads")
    return group


def add_keep_options(
    parser: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None
) -> None:
    """Adds `--keep` to a group of the parser, by default its first, and the methods' options."""
    add_axis(parser, group or parser, KEEP_AXIS, "which tokens stay in the KV cache", _keep_method)


def _keep_method(text: str) -> str:
    """An argparse type: the name of a method. In llama.cpp, `--keep` takes a number."""
    if text.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(
            f"found {shown(text)}, expected {', '.join(KEEPS)}: `--keep streaming` always keeps "
            "the first 4 tokens"
        )
    return text


def add_prefill_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--prefill` and the options of the methods."""
    group = parser.add_argument_group(
        "prefill", "which tokens of the context a token of a prompt reads"
    )
    add_axis(parser, group, PREFILL_AXIS, "which tokens it reads")


def add_kv_type_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--kv-type",
        metavar="T",
        type=argument_type(kv_types),
        help=f"type of the KV cache: {', '.join(KV_TYPES)} (default f16, or what a pack has), or "
        "one for K and one for V, as q8_0/q4_0",
    )
    for i, part in enumerate("kv"):
        parser.add_argument(
            f"-ct{part}",
            f"--cache-type-{part}",
            dest="kv_type",
            action=_StoreOneType,
            const=i,
            choices=KV_TYPES,
            help=argparse.SUPPRESS,
        )


class _StoreOneType(argparse.Action):
    """llama.cpp's options for the type of K (const 0) or of V (1); the other keeps its type."""

    def __call__(self, parser: object, namespace: Any, value: Any, option: object = None) -> None:
        pair = list(namespace.kv_type or Ram().types())
        pair[self.const] = value
        namespace.kv_type = tuple(pair)


def add_pack_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--pack`, `--shards` and `--io`."""
    group = parser.add_argument_group("packs")
    group.add_argument(
        "--pack",
        type=file_name,
        metavar="NAME",
        help="continue after a context pack (see `kvarn pack`), which does not change",
    )
    group.add_argument(
        "--shards",
        type=_addresses,
        metavar="HOST:PORT,…",
        help="its first segments are held at these addresses (see `kvarn shard`)",
    )
    choice = group.add_argument(
        "--shards-choice",
        choices=CHOICES,
        help="what methods that choose take: the best of all shards' tokens, in two exchanges a "
        "layer (all, the default), or each shard's part, the best of its own, in one",
    )
    for action in (choice, add_token_options(group, "the token of the shards")):
        mark_rare(action)
    declared = Disk.options()["io"]
    group.add_argument(
        "--io",
        choices=declared.choices,
        help=f"{declared.help} (default {Disk.io})",
    )


def _addresses(text: str) -> str:
    """An argparse type: HOST:PORT, or some of them; each is checked where a context is asked."""
    if not text.strip(","):
        raise argparse.ArgumentTypeError(f"expected HOST:PORT,…, found {shown(text)}")
    return text


def add_kv_option(parser: argparse._ActionsContainer, folder_help: str) -> None:
    """Adds `--kv`; `folder_help` says what a folder means; `options.store`."""
    parser.add_argument(
        "--kv",
        dest="store",
        type=file_name,
        metavar=f"{Ram.name}|DIR",
        help=f"where the KV cache is kept: {Ram.summary} (default), or in the folder DIR: "
        f"{folder_help}",
    )


def add_axis(
    parser: argparse.ArgumentParser,
    group: argparse._ActionsContainer,
    axis: Axis[M],
    help: str,
    name_type: Callable[[str], str] = str,
) -> None:
    """Add the flag that names a method, with the methods' summaries after `help`, and all options:
    to `group` those that several methods have, and the others under a heading for each method.

    name_type: the argparse type of the name.
    """
    summaries = "; ".join(_summary(axis, name) for name in axis.methods)
    group.add_argument(
        as_flag(axis.word),
        type=name_type,
        choices=axis.names(),
        help=f"{help}: {summaries}".replace("%", "%%"),
    )
    headed: dict[str, argparse._ArgumentGroup] = {}
    for word, fields in axis.options().items():
        declared = axis.declared(fields)
        choices: dict[str, Any] = (
            {"choices": declared.choices}
            if declared.choices
            else {
                "metavar": declared.metavar,
                "type": _TYPES.get(declared.kind, argument_type(declared.read)),
            }
        )
        help = _help(axis, fields).replace("%", "%%")
        place = group
        if len(fields) == 1:
            (name,) = fields
            place = headed.get(name) or parser.add_argument_group(f"{as_flag(axis.word)} {name}")
            headed[name] = place
        action = place.add_argument(as_flag(word), help=help, **choices)
        if word not in USUAL:
            mark_rare(action)


def _summary(axis: Axis[M], name: str) -> str:
    default = " (default)" if name == axis.default else ""
    return f"{name}{default}: {axis.methods[name].summary}"


def _help(axis: Axis[M], fields: Mapping[str, str]) -> str:
    """The help of an option: the methods that have it, if not all do; its use; its defaults."""
    help = axis.declared(fields).help
    if 1 < len(fields) < sum(bool(method.options()) for method in axis.methods.values()):
        help = f"{', '.join(fields)}: {help}"
    defaults = {name: getattr(axis.methods[name], field) for name, field in fields.items()}
    if len(set(defaults.values())) > 1:
        listed = ", ".join(f"{name} {value}" for name, value in defaults.items())
        return f"{help} (default: {listed})"
    return help if "default" in help else f"{help} (default {next(iter(defaults.values()))})"
