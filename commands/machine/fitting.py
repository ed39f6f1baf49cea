"""`kvarn doctor --fit`: what a model and a context take on this machine, and what to choose."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from ...runtime.engine import on_engine
from ...runtime.gguf import open_gguf
from ...runtime.home import home
from ...runtime.memory import available_bytes, human_bytes
from ...system.errors import WrongUsage
from ...system.files import disk_free
from ...system.spelling import as_flag
from ...system.values import WrongValue
from ..options.drafting import draft_from
from ..options.model import model_file
from ..options.model_options import adapters_from, add_ctx_option, add_lora_option
from ..options.values import file_path, positive, utf8
from ..terminal.progress import duration

METHODS = ("full", "auto", "topk", "hash")


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """`--fit MODEL`, and the context that it asks about."""
    group = parser.add_argument_group("what fits")
    group.add_argument(
        "--fit",
        metavar="MODEL",
        type=file_path,
        help="show the memory, disk and time that a model takes, from its header alone",
    )
    add_ctx_option(group, "with --fit: tokens of context, as 128K")
    group.add_argument(
        "--kv-type", metavar="T", help="with --fit: f16 (default), q8_0, q4_0, or K/V"
    )
    group.add_argument(
        "--method", choices=METHODS, help="with --fit: what tokens read (default full)"
    )
    add_lora_option(group, "with --fit: ")
    group.add_argument(
        "--draft", metavar="FILE", type=utf8, help="with --fit: the model that is to draft for it"
    )
    group.add_argument(
        "--memory", metavar="GIB", type=positive, help="with --fit: advise for so many GiB"
    )
    group.add_argument(
        "--no-speed", action="store_true", help="with --fit: measure no speed (a few seconds)"
    )


def check_unused(options: argparse.Namespace) -> None:
    """Raises `KvarnError` for an option of `--fit`, which is not given."""
    for word in ("ctx", "kv_type", "method", "lora", "draft", "memory", "no_speed"):
        if getattr(options, word) not in (None, False):
            raise WrongUsage(f"{as_flag(word)} has no effect without --fit MODEL")


def report(options: argparse.Namespace) -> dict[str, Any]:
    """What `--fit` shows, as JSON has it. Raises `KvarnError` for a model that kvarn does not run,
    or cannot read."""
    from ...runtime.attend import ATTENDS
    from ...runtime.context.planning.request import kv_types
    from ...runtime.fitting import advice, estimate, predicted, speeds, with_beside

    try:
        kv = kv_types(options.kv_type or "f16")
    except WrongValue as error:
        raise WrongUsage(f"--kv-type: {error}") from None
    attend = ATTENDS[options.method or "full"]()
    with open_gguf(model_file(options.fit, remember=False)) as file:
        needs = on_engine(estimate, file, options.ctx, kv, attend)
        lora, draft = adapters_from(options), draft_from(options)
        needs = on_engine(with_beside, needs, file, lora, draft)
        memory = options.memory << 30 if options.memory else available_bytes()
        disk = disk_free(home())
        line, words = advice(file, needs, attend, memory, disk)
        if words:
            words += [word for adapter in lora for word in ("--lora", str(adapter))]
            words += ["--draft", options.draft] if options.draft else []
        facts = {**needs.as_dict(), "available_bytes": memory, "disk_free_bytes": disk}
        if not options.no_speed:
            measured = on_engine(speeds, needs.weight_type, kv[0])
            facts["estimated"] = predicted(file, needs, measured)
    command = shlex.join(["kvarn", "run", *words]) if words else ""
    return {**facts, "advice": line, "command": command}


def render(facts: dict[str, Any]) -> str:
    """The report as lines of text, the advice last."""
    return "\n".join(f"{name:<9} {value}".rstrip() for name, value in _lines(facts))


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    size = {key: human_bytes(value) for key, value in facts.items() if key.endswith("_bytes")}
    weights = {key: human_bytes(value) for key, value in facts["weights"].items()}
    yield "model", f"{facts['name']}: {facts['architecture']}, mostly {facts['weight_type']}"
    context = f"{facts['n_ctx']:,} tokens, K and V {facts['kv']}, method {facts['method']}"
    yield "context", context
    yield "weights", f"{weights['resident']}, of which a token reads {weights['per_token']}"
    if facts["adapter_bytes"]:
        yield "adapters", size["adapter_bytes"]
    yield "KV cache", size["kv_bytes"]
    if facts["index_bytes"]:
        yield "index", size["index_bytes"]
    if facts["state_bytes"]:
        yield "states", f"{size['state_bytes']}, checkpoints included"
    yield "buffers", f"{size['buffer_bytes']}, without those of a method"
    if facts["draft_bytes"]:
        yield "draft", f"{size['draft_bytes']}, its context included"
    yield "memory", f"{size['memory_bytes']} in all; {size['available_bytes']} is available"
    yield "disk", f"{size['disk_bytes']} as a pack; {size['disk_free_bytes']} are free"
    if speed := facts.get("estimated"):
        read = duration(speed["prompt_seconds"])
        yield "estimate", f"reading {facts['n_ctx']:,} tokens exactly takes {read}; after them"
        yield (
            "",
            f"{speed['tokens_per_second']:.3g} tokens per second (not measured with this model)",
        )
    yield "", ""
    yield "advice", facts["advice"]
    if facts["command"]:
        yield "", facts["command"]
