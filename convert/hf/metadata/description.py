"""The `general.*` keys: what a model is called, who made it, how its makers sample from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import yaml

from ....system.text import one_line
from ...errors import ConvertError
from ..files.jsons import brief, optional_json, read_bytes

_MAX_CARD = 4 << 20
_MAX_FACTS = 512 << 10  # of what a card says to programs
_KINDS: dict[type, str] = {int: "whole number", float: "number", str: "text"}
# Keys of generation_config.json that go into the file as they are, and their types.
_SAMPLING: dict[str, type[int] | type[float] | type[str]] = {
    "sequence": str,
    **dict.fromkeys(("top_k", "penalty_last_n", "mirostat"), int),
    **dict.fromkeys(("top_p", "min_p", "xtc_probability", "xtc_threshold", "temperature"), float),
    **dict.fromkeys(("penalty_repeat", "mirostat_tau", "mirostat_eta"), float),
}


def add_description(
    writer: gguf.GGUFWriter, folder: Path, name: str | None, kind: str = gguf.GGUFType.MODEL
) -> None:
    """Write the keys, by gguf-py's rules, which are llama.cpp's.

    name: of a model whose card gives none, as "organisation/model" (default: the folder's name).
    kind: `general.type`. `ConvertError` for a card (README.md) that cannot be read.
    """
    total, shared, experts, n_experts = writer.get_total_parameter_count()
    parameters = optional_json(folder / "config.json")
    path = parameters.get("_name_or_path")
    if path is not None and not isinstance(path, str):
        raise ConvertError(f"config.json: _name_or_path is {brief(path)}, expected a name")
    if name is not None:
        parameters.setdefault("_name_or_path", name)
    title = Path(name or folder.absolute().name)
    try:
        metadata = gguf.Metadata.apply_metadata_heuristic(
            gguf.Metadata(), read_card(folder / "README.md"), parameters, title, total
        )
        for key, value in _sampling(folder / "generation_config.json").items():
            setattr(metadata, key, value)
        metadata.name = metadata.name or title.name
        metadata.size_label = metadata.size_label or gguf.size_label(
            total, shared, experts, n_experts
        )
        writer.add_type(kind)
        metadata.set_gguf_meta_model(writer)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        # gguf-py expects what the hub shows, and raises any of these for anything else.
        raise ConvertError(
            f"README.md or config.json: what they say of the model cannot be read ({brief(error)}):"
            " mend or remove README.md"
        ) from error


def _sampling(path: Path) -> dict[str, Any]:
    """The settings of generation_config.json by gguf-py's names."""
    settings = {}
    for key, stored in optional_json(path).items():
        if key not in _SAMPLING or stored is None:
            continue
        kind = _SAMPLING[key]
        whole = kind is int and isinstance(stored, float) and stored.is_integer()
        value = int(stored) if whole else stored  # transformers takes 50.0 for 50
        if type(value) not in ((int, float) if kind is float else (kind,)):
            raise ConvertError(f"{path.name}: {key} is {brief(value)}, expected a {_KINDS[kind]}")
        settings["sampling_temp" if key == "temperature" else f"sampling_{key}"] = value
    return settings


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml comes without types
    """YAML without aliases, with which a small text can stand for a large value."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Raises `YAMLError` for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias, which kvarn does not follow")
        return super().compose_node(parent, index)


def read_card(path: Path) -> dict[str, Any]:
    """The metadata of a model card: the YAML between "---" and "---" at its beginning.

    Text, lists and objects; numbers and dates as text. Empty where there is none.
    """
    if not path.is_file():
        return {}
    try:
        lines = read_bytes(path, _MAX_CARD).decode("utf-8").splitlines()
        if not lines or lines[0] != "---":
            return {}
        end = lines.index("---", 1) if "---" in lines[1:] else len(lines)
        # As gguf-py: "no" is Norwegian, and tabs are spaces.
        facts = ("\n".join(lines[1:end]) + "\n").replace("- no\n", '- "no"\n').replace("\t", "  ")
        if len(facts) > _MAX_FACTS:
            raise ConvertError(
                f"README.md begins with {len(facts):,} characters of YAML, expected at most "
                f"{_MAX_FACTS:,}: shorten or remove it"
            )
        card = _plain(yaml.load(facts, _Loader))  # a SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise ConvertError(
            f"README.md: the model card cannot be read: {one_line(str(error), 120)}"
        ) from error
    return card if isinstance(card, dict) else {}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value if item is not None]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
