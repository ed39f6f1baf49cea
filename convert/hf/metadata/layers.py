"""What config.json says of each layer: its kind, and whether it has a window."""

from __future__ import annotations

from gguf import GGUFWriter

from ....models.config.architectures import ARCHITECTURES
from ...errors import ConvertError
from ..config import Config
from ..files.jsons import brief


def windowed_layers(config: Config, period: int) -> list[bool]:
    """Whether each layer sees only a sliding window: as listed, or all but every period-th."""
    if config.get("layer_types") is None:
        period = config.optional_integer("sliding_window_pattern") or period
        return usual_windows(config, period)
    kinds = layer_kinds(config, ("sliding_attention", "full_attention"))
    return [kind == "sliding_attention" for kind in kinds]


def usual_windows(config: Config, period: int) -> list[bool]:
    """A window in all layers but every period-th."""
    return [(i + 1) % period != 0 for i in range(config.n_layers)]


def layer_kinds(config: Config, known: tuple[str, ...]) -> list[str]:
    """The kind of each layer as listed; `ConvertError` unless it is one of `known`."""
    types = config.get("layer_types")
    if not isinstance(types, list) or len(types) != config.n_layers:
        raise ConvertError(f"config.json: layer_types does not name {config.n_layers} layers")
    if unknown := next((kind for kind in types if kind not in known), None):
        raise ConvertError(
            f"config.json: layer_types has {brief(unknown)}, expected one of {', '.join(known)}"
        )
    return types


def add_windows(
    writer: GGUFWriter, config: Config, windowed: list[bool], usual: list[bool] | None = None
) -> None:
    """The window, and which layers have one, unless these are the `usual` ones, which readers take
    by default. (llama.cpp's converter never writes others.)"""
    writer.add_sliding_window(config.integer("sliding_window"))
    if windowed != usual:
        writer.add_sliding_window_pattern(windowed)


def add_periodic_windows(writer: GGUFWriter, config: Config) -> None:
    """Of architectures whose readers know a period."""
    windowing = ARCHITECTURES[writer.arch].windowing
    assert windowing is not None
    period = windowing.period
    add_windows(writer, config, windowed_layers(config, period), usual_windows(config, period))
