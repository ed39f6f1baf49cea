"""`kvarn ls`: the models and packs that kvarn knows on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from ...runtime.home import last_model, last_pull, models_made
from ...runtime.loading.default_model import default_model_path
from ...runtime.memory import human_bytes
from ...system.terminal import show, show_json
from ..terminal.tables import NO_PACKS, columns, list_packs, pack_table


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the models on this machine (pulled, converted, or shipped with kvarn) and the "
        "context packs. The model that commands take without -m is marked *."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    models, packs = _models(), list_packs()
    if options.json:
        show_json({"models": models, "packs": [pack.as_dict() for pack in packs]})
        return 0
    rows = [
        (
            "*" if model["default"] else "",
            model["from"],
            human_bytes(model["n_bytes"]),
            model["path"],
        )
        for model in models
    ]
    show(columns([("", "models", "size", "file"), *rows], "<<><"))
    pulled = last_pull()
    if pulled is not None and pulled[1].is_dir():
        show(
            f"\nweights of {pulled[0]}, pulled last: `kvarn convert OUT.gguf` makes a model of them"
        )
    show("\n" + (pack_table(packs) if packs else NO_PACKS))
    return 0


def _models() -> list[dict[str, Any]]:
    """Model files on this machine; the one that commands take without -m comes first."""
    last, shipped = last_model(), default_model_path()
    usual = last if last is not None and last.is_file() else shipped
    origins = {shipped: "ships with kvarn", **models_made()}
    return [
        {
            "path": str(path),
            "from": origin,
            "n_bytes": path.stat().st_size,
            "default": path == usual,
        }
        for path, origin in sorted(
            origins.items(), key=lambda item: (item[0] != usual, str(item[0]))
        )
        if path.is_file()
    ]
