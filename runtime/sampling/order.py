"""Names of samplers and the order in which they are applied, as llama.cpp spells them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from .errors import BadOption

_LETTERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
    "adaptive_p": "a",
}
ADAPTIVE = "adaptive_p"
"""The sampler that draws, wherever it stands; not in the default order."""
DEFAULT_ORDER = tuple(name for name in _LETTERS if name != ADAPTIVE)
_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical_p": "typ_p"}


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")


_NAMES = {_plain(name): name for name in _LETTERS} | {_plain(k): v for k, v in _ALIASES.items()}


def samplers_named(names: str | Iterable[str]) -> tuple[str, ...]:
    """The samplers of a list of names, or of a text as `top_k;temperature`; "": none.

    Names may have hyphens (`top-k`), no sign (`topk`), or be `nucleus`, `temp`, `typ`. Raises
    `SamplingError` for another name.
    """
    if isinstance(names, str):
        names = names.split(";") if names.strip() else ()
    return tuple(_named(name) for name in names)


def _named(name: str) -> str:
    if (known := _NAMES.get(_plain(name))) is not None:
        return known
    close = get_close_matches(_plain(name), _NAMES, 1)
    hint = f": did you mean {_NAMES[close[0]]}?" if close else ""
    raise BadOption(
        f"sampling: samplers name {name!r:.40}, expected some of {', '.join(_LETTERS)}{hint}"
    )


def samplers_lettered(letters: str) -> tuple[str, ...]:
    """The samplers of llama.cpp's letters, as `edskypmxt`, its default order.

    Raises `SamplingError` for another letter.
    """
    names = {letter: name for name, letter in _LETTERS.items()}
    if unknown := next((letter for letter in letters if letter not in names), ""):
        raise BadOption(
            f"sampling: samplers have the letter {unknown!r}, expected some of {''.join(names)}"
        )
    return tuple(names[letter] for letter in letters)
