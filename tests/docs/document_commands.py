"""What documents tell their readers to type: commands and snippets of Python.

A command line ends before two spaces, where what it does is said, or at a `#`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

PROGRAMS = ("kvarn", "make", "pip", "python", "python3", "git", "ray", ".")
SHELLS = ("sh", "bash", "shell", "console")
_FENCE = re.compile(r"```(\w*)")
_INLINE = re.compile(r"`([^`]+)`")
_LIST = re.compile(r"\s*(?:[-*]|\d+\.) ")


@dataclass(frozen=True)
class Step:
    """One thing to type. mention: a command named in a sentence, without its arguments."""

    kind: Literal["shell", "python"]
    text: str
    mention: bool = False

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


Block = list[Step]
"""What is typed one after the other, in one folder."""


def blocks(document: Path) -> list[Block]:
    """All that a document tells its reader to type; each command in a sentence is a block."""
    code, prose = parts(document.read_text(encoding="utf-8"))
    found = [block for language, text in code if (block := _block(language, text))]
    for span in _INLINE.findall("\n".join(prose)):
        text = " ".join(span.split())
        if text.split()[0] in PROGRAMS:
            found.append([Step("shell", text, mention=_is_mention(text))])
    return found


def _is_mention(text: str) -> bool:
    program, *rest = text.split()
    return not rest or (program in ("kvarn", "make") and len(rest) == 1 and rest[0].islower())


def parts(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Blocks of code with their language ("" for none), and the other lines."""
    code: list[tuple[str, str]] = []
    prose: list[str] = []
    lines = iter(text.splitlines())
    before = ""
    for line in lines:
        if fence := _FENCE.match(line):
            inside = []
            for line in lines:  # noqa: PLW2901 - up to the end of the block
                if line.startswith("```"):
                    break
                inside.append(line)
            code.append((fence[1], "\n".join(inside)))
        elif line.startswith("    ") and before == "indented":
            code[-1] = "", f"{code[-1][1]}\n{line[4:]}"
            continue
        elif line.startswith("    ") and not before and not _in_list(prose):
            code.append(("", line[4:]))
            before = "indented"
            continue
        else:
            prose.append(line)
        before = line.strip()
    return code, prose


def _in_list(prose: list[str]) -> bool:
    """Whether the last paragraph belongs to a list, which a line with an indent continues."""
    written = [line for line in prose if line]
    return bool(written) and (written[-1].startswith("  ") or bool(_LIST.match(written[-1])))


def _block(language: str, text: str) -> Block:
    if language == "python":
        return [Step("python", text)]
    commands = list(_commands(text))
    if language in SHELLS or any(command.split()[0] in PROGRAMS for command in commands):
        return [Step("shell", command) for command in commands]
    return []  # a picture, an excerpt


def _commands(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command = re.split(r" {2,}|\s#", line.strip().removeprefix("$ "))[0]
        if command and not line.startswith(" "):
            yield command
