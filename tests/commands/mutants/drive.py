"""Drives commands over mutants, in a process of its own that may die of them.

    python -m tests.commands.mutants.drive gguf|folders|packs|f16-packs|large FOLDER NUMBER…
    python -m tests.commands.mutants.drive choose gguf|folders|packs|f16-packs N SEED

The first tries the mutants with these numbers, the second draws N numbers by a seed.
Prints a line of JSON before and after each: a parent knows which one a crash or a hang belongs to.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

BASES = (
    *("llama-mha", "llama-mha/bpe", "llama-yarn", "gemma3", "phi3-long", "cohere2", "qwen3"),
    *("qwen35", "qwen3next", "lfm2", "granite", "granitehybrid", "muse-glimmer", "stablelm-12b"),
    *("qwen3moe", "glm4moe", "laguna", "gpt-oss", "gemma4", "gemma4-shared", "gemma4-experts"),
    *("qwen35moe", "lfm2moe", "olmo2-window", "exaone4", "hunyuan-dense", "phi2", "deepseek2"),
    *("nemotron_h_moe-latent", "falcon-h1"),
)
KEYS_ALONE = ("gemma3", "olmo2-window", "exaone4", "hunyuan-dense", "phi2")
"""Those that are not run, as their kernels are many; their keys are inspected."""
WATCHDOG = 60
"""Seconds for one mutant: some twenty for the kernels that it is the first to need."""


def main(kind: str, folder: Path, numbers: list[int]) -> None:
    """Try the mutants with these numbers."""
    cases = list(CASES[kind]())
    if kind == "large":
        _warm(folder)
    for number in numbers:
        name, make, commands = cases[number]
        print(json.dumps({"number": number, "name": name}), flush=True)
        path, size = make(folder)
        faulthandler.dump_traceback_later(WATCHDOG, exit=True)
        start, before = time.monotonic(), _peak()
        outcomes = [outcome(command(path)) for command in commands]
        faulthandler.cancel_dump_traceback_later()
        report = {
            "number": number,
            "outcomes": outcomes,
            "seconds": time.monotonic() - start,
            "growth": _peak() - before - size,
        }
        print(json.dumps(report), flush=True)


def gguf_cases() -> Any:
    """Every GGUF mutant: name, what writes it, commands."""
    from . import gguf_mutants

    for base in BASES:
        file = gguf_mutants.base(base)
        for mutant in gguf_mutants.mutants(file):

            def make(folder: Path, file: Any = file, mutant: Any = mutant) -> tuple[Path, int]:
                path = folder / "mutant.gguf"
                path.write_bytes(gguf_mutants.spoiled(file, mutant))
                return path, path.stat().st_size

            commands: list[Callable[[Path], list[str]]] = [
                lambda path: ["inspect", str(path)],
                lambda path: ["inspect", "--json", str(path)],
                lambda path: ["tokenize", "-m", str(path), "a b"],
            ]
            if mutant.runs and base not in KEYS_ALONE:
                commands.append(lambda path: ["run", "-n", "2", "-p", "a b", "-m", str(path)])
            yield f"{base}: {mutant.name}", make, commands


def folder_cases() -> Any:
    """Every mutant of a folder."""
    from . import folder_mutants

    for name, form, spoil in folder_mutants.mutants():

        def make(folder: Path, form: str = form, spoil: Any = spoil) -> tuple[Path, int]:
            path = folder / "model"
            shutil.rmtree(path, ignore_errors=True)
            folder_mutants.write_folder(path, form)
            spoil(path)
            (folder / "out.gguf").unlink(missing_ok=True)
            return path, sum(file.stat().st_size for file in path.iterdir())

        extra = ["--pre", "qwen2"] if form == "bpe" else []
        yield name, make, [partial(_convert, extra=extra)]


def large_cases() -> Any:
    """Files that ask for much memory; what they need before weights are laid out."""
    from . import large_files

    for name, written in large_files.LARGE.items():

        def make(folder: Path, written: Any = written) -> tuple[Path, int]:
            path = folder / "large.gguf"
            # Made elsewhere: what making it takes is not to be counted.
            child = os.fork()
            if not child:
                path.write_bytes(written())
                os._exit(0)
            os.waitpid(child, 0)
            return path, path.stat().st_size

        yield name, make, [partial(_given, command) for command in COMMANDS]


COMMANDS = (["inspect"], ["inspect", "--json"], ["tokenize", "a b", "-m"])


def _given(command: list[str], path: Path) -> list[str]:
    return [*command, str(path)]


def _warm(folder: Path) -> None:
    """Import what the commands import."""
    from . import gguf_mutants

    path = folder / "sound.gguf"
    path.write_bytes(gguf_mutants.base("llama-mha").written())
    for command in COMMANDS:
        assert outcome(_given(command, path)) == "0"


def pack_cases() -> Any:
    """Packs whose checksums are right and whose contents are hostile."""
    from . import pack_mutants

    for kind, name, make, commands in pack_mutants.cases():
        yield f"{kind} {name}", partial(_warmed, kind, make), commands


def _warmed(kind: str, make: Callable[[Path], tuple[Path, int]], folder: Path) -> tuple[Path, int]:
    """What `make` makes, once the kernels that its commands need are compiled: outside the clock
    of any mutant."""
    from . import pack_mutants

    warm = folder / f"warm-{kind}"
    if not warm.exists():
        for line in pack_mutants.sound_lines(kind, folder):
            assert outcome(line) == "0", outcome(line)
        warm.touch()
    return make(folder)


def f16_pack_cases() -> Any:
    """The third of them that takes the kernels of K and V in f16, which other tests use too."""
    return islice(pack_cases(), 0, None, 3)


CASES = {
    "packs": pack_cases,
    "f16-packs": f16_pack_cases,
    "gguf": gguf_cases,
    "folders": folder_cases,
    "large": large_cases,
}


def _convert(path: Path, extra: list[str]) -> list[str]:
    return ["convert", str(path), str(path.parent / "out.gguf"), "--type", "f16", *extra]


def outcome(arguments: list[str]) -> str:
    """ "0", "1: the error, or the first line of a verdict", "2", or the traceback of what nobody
    foresaw."""
    from kvarn import cli
    from kvarn.system.errors import KvarnError

    written = io.BytesIO()
    out, err = io.TextIOWrapper(written, encoding="utf-8", write_through=True), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            options = cli.build_parser(arguments[0]).parse_args(arguments)
            code = str(cli.module_of(options.command).run(options))
        lines = [*written.getvalue().decode().splitlines(), *err.getvalue().splitlines()]
        return f"{code}: {lines[0]}" if code != "0" and lines else code
    except (KvarnError, OSError) as error:
        return f"1: {error}"
    except SystemExit as left:
        return str(left.code)
    except BaseException:
        return f"TRACEBACK {arguments[0]}: {traceback.format_exc()}"


def chosen(kind: str, n: int, seed: int) -> list[int]:
    """`n` of the mutants, drawn by a seed."""
    total = sum(1 for _ in CASES[kind]())
    return sorted(random.Random(seed).sample(range(total), min(n, total)))


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    if sys.argv[1] == "choose":
        print(json.dumps(chosen(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        main(sys.argv[1], Path(sys.argv[2]), [int(number) for number in sys.argv[3:]])
