"""Low-rank adapters by file and scale; apart, as command lines are parsed without what computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...system.errors import KvarnError, WrongUsage, no_such_file
from ...system.files import GGUF_MAGIC, kind_of
from ...system.text import one_line


@dataclass(frozen=True)
class AdapterFile:
    """A GGUF file with an adapter, and the factor on what it adds."""

    path: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str | Path | AdapterFile) -> AdapterFile:
        """Parse FILE or FILE:SCALE. Raises `KvarnError` where there is no such GGUF file or the
        scale is not finite; OSError."""
        if isinstance(text, AdapterFile):
            return text
        if not str(text):
            raise WrongUsage("the name of an adapter is empty: expected FILE or FILE:SCALE")
        path, scale = Path(text), 1.0
        if isinstance(text, str) and not path.is_file():
            name, _, number = text.rpartition(":")
            try:
                scale = float(number)
            except ValueError:
                name = text
            path = Path(name or text)
        if (path / "adapter_config.json").is_file():
            folder = one_line(str(path), 300)
            raise KvarnError(
                f"{folder} is the folder of an adapter, expected a GGUF file: `kvarn convert "
                f"{folder} OUT.gguf --base MODEL` makes one"
            )
        if not path.is_file():
            name, advice = one_line(str(text), 300), "expected an adapter, FILE or FILE:SCALE"
            if path.exists():
                raise KvarnError(f"{name} is {kind_of(path.stat().st_mode)}: {advice}")
            raise KvarnError(no_such_file(name, advice))
        with path.open("rb") as file:
            if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise KvarnError(
                    f"adapter {one_line(str(path), 300)}: not a GGUF file: expected an adapter, as "
                    "`kvarn convert` makes it of a folder that PEFT saved"
                )
        if not math.isfinite(scale):
            raise WrongUsage(
                f"adapter {one_line(str(path), 300)}: found scale {scale}, expected a finite number"
            )
        return cls(path, scale)

    def __str__(self) -> str:
        return f"{self.path}:{self.scale!r}"


Lora = str | Path | AdapterFile
"""An adapter as users name it: FILE, FILE:SCALE or the object."""


def adapter_files(lora: Lora | Sequence[Lora]) -> tuple[AdapterFile, ...]:
    """The files of one adapter or several. Raises what `AdapterFile.parse` raises."""
    several = [lora] if isinstance(lora, (str, Path, AdapterFile)) else lora
    return tuple(AdapterFile.parse(one) for one in several)


@dataclass(frozen=True)
class AdapterFacts:
    """An adapter that K and V were computed with. Its file may move."""

    digest: str
    """Of its numbers, 16 hexadecimal digits."""
    scale: float
    path: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{one_line(self.path, 300)}:{self.scale:g} (digest {one_line(self.digest)})"
