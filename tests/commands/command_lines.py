"""Command lines that nobody should type, made of what the parsers say they take.

Each is drawn from a seed: options with values that fit, values at the borders, of the wrong type,
missing, repeated, unknown. What a line may compute is bounded: one token, a context of 64.
Paths are relative: whoever runs a line does it in a folder that may be lost.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from kvarn.cli import build_parser
from kvarn.commands import COMMANDS
from kvarn.commands.measuring.eval import _numbers
from kvarn.commands.options.values import count, counts, file_name, integer, positive

INTEGERS = [
    *"0 1 2 3 16 32 64 -1 -2 -0 +1 007 1.5 1e3 x nan ٣ 1_000 0x10 1,2 , 1% 200% --".split(),
    *(str(sign * 2**bits + by) for bits in (31, 32, 63) for sign in (1, -1) for by in (-1, 0)),
    *("", " 1", "1 ", "9" * 5000, "1\0", "\udcff"),
]
FLOATS = ["", *"0 0.5 1 -1 1e-320 1e308 1e309 -1e309 nan inf -inf x 1,5 0x1p3 ١ --".split()]
PATHS = [
    *"text.txt empty.txt latin.txt missing.txt folder folder/ model.gguf broken.gguf".split(),
    *"out.gguf new.json loop no/such/folder.gguf text.txt/below .. . ~ ~nobody ./pack".split(),
    *"packs/x -- - encoders.hash.gguf".split(),
    *("", " ", "\n", "a\0b", "a\x1b[31mb", "\udcff", "é", "\u202egpj", "n" * 300, "n/" * 3000),
    *("\\", "*", "x" * 1_000_000, "kvarn: forged\nkvarn: twice", "$HOME", "%s", "{0}"),
]
TEXTS = [
    *("", "x", "one two", "--", "-", "<s>", "</s>", "\0", "\x1b]0;t\x07", "\udcff", "é", "中文"),
    *("\r\n", "\u200d", "{{x}}", "%n", "x" * 1_000_000),
]
WORDS = [
    *"full topk hash f16 q8_0 q4_0 q8_0/f16 q8_0/ /f16 q3 needle kv two-hop ruler ? md".split(),
    *"json csv ram 2% 0% 100% 101% -1% nan% all streaming nacl main F16 q4_k_m bf16".split(),
    *"needle,kv full,hash:bits=64 topk:sink=-1 hash:encoders= hash:bits topk:tail=2=3".split(),
    *"topk:index=flat:sink=99999999999999999999 : , org/model org/../model ٣+1 1-inf 1+nan".split(),
    *"http://127.0.0.1:9/org/model 15043+1 99999999+1 99999999999999999999+1 llama-bpe".split(),
    *TEXTS,
]
UNKNOWN = (
    "--no-such",
    "--",
    "-",
    "-Z",
    "--=",
    "--ctx=--",
    "-",
    "---",
    "--prompt=",
    "-n",
    "--\udcff",
)

# What a command would compute for minutes: given last, so that it counts.
BOUNDS = {
    "run": ["-n", "1", "-c", "64"],
    "chat": ["-n", "1", "-c", "64"],
    "bench": "-p 2 -n 1 -d 4 -r 1".split(),
    "perplexity": "-c 16 --chunks 1".split(),
    "imatrix": "-c 16 --chunks 1".split(),
    "eval": "--length 128 --contexts 1 --questions 1 --task kv --method full --keep all".split(),
    "build": ["--kv-type", "f16"],
    "pack": ["-c", "64"],
    "learn": "--tokens 64 --length 64".split(),
    "serve": "--host 192.0.2.1 --port 9".split(),  # an address that no machine has
    "route": "--host 192.0.2.1 --port 9".split(),
    "shard": "--listen 192.0.2.1:9".split(),
}
LONG = {"--roofline"}  # half a minute


def command_lines(seed: int, n: int) -> Iterator[list[str]]:
    """`n` command lines, the same for the same seed."""
    rng = random.Random(seed)
    commands = dict(_commands(build_parser(*COMMANDS), ()))
    names = sorted(commands)
    for _ in range(n):
        name = rng.choice(names)
        yield _line(rng, name, commands[name])


def _commands(
    parser: argparse.ArgumentParser, before: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], list[argparse.Action]]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _commands(below, (*before, name))
            return
    yield before, parser._actions


def _line(rng: random.Random, name: tuple[str, ...], actions: list[argparse.Action]) -> list[str]:
    words = []
    options = [a for a in actions if a.option_strings and not LONG & set(a.option_strings)]
    for action in rng.choices(options, k=rng.choice((0, 0, 1, 1, 2, 3, 5))):
        if isinstance(action, argparse._HelpAction) and rng.random() < 0.9:
            continue
        words += _option(rng, action)
    for action in actions:
        if action.required and action.option_strings and rng.random() < 0.9:
            words += _option(rng, action, sensible=True)
        elif not action.option_strings and rng.random() < 0.9:
            words += _values(rng, action, rng.random() < 0.6)
    if name[0] == "run" and rng.random() < 0.5:
        words += ["-p", "x"]
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), rng.choice(UNKNOWN))
    head = list(name) if rng.random() < 0.97 else [rng.choice((*name, *WORDS))]
    return [*head, *words, *_bounds(rng, name, words)]


def _bounds(rng: random.Random, name: tuple[str, ...], words: list[str]) -> list[str]:
    """What keeps a line quick, after which a fuzzed option of the kind says nothing."""
    bounds = BOUNDS.get(name[0], [])
    if name[0] == "pack" and name[-1] != "build":
        return []
    evicts = any(word.startswith("--keep") for word in words)  # such a context never ends
    if name[0] in ("run", "chat") and not evicts and max(map(len, words), default=0) < 1000:
        return rng.choice((bounds, bounds[:2], bounds[2:]))  # one of the two is enough
    return bounds


def _option(rng: random.Random, action: argparse.Action, sensible: bool = False) -> list[str]:
    flag = rng.choice(action.option_strings)
    if action.nargs == 0:
        return [flag if rng.random() < 0.95 else f"{flag}=x"]
    values = _values(rng, action, sensible or rng.random() < 0.4)
    if "-f" in action.option_strings:  # megabytes are no text that is read in a second
        values = [value.replace("model.gguf", "text.txt") for value in values]
    if rng.random() < 0.05:
        return [flag]
    if rng.random() < 0.3 and len(flag) > 2:
        return [f"{flag}={values[0]}" if values else flag]
    return [flag, *values]


def _values(rng: random.Random, action: argparse.Action, sensible: bool) -> list[str]:
    n = {None: 1, "?": 1, "+": rng.choice((1, 1, 2)), "*": rng.choice((0, 1, 2))}[action.nargs]
    return [_value(rng, action, sensible) for _ in range(n)]


def _value(rng: random.Random, action: argparse.Action, sensible: bool) -> str:
    if action.choices is not None and (sensible or rng.random() < 0.7):
        return str(rng.choice(list(action.choices)))
    kind = action.type
    if kind is Path or kind is file_name:
        return rng.choice(("text.txt", "model.gguf", "out.gguf", "./pack") if sensible else PATHS)
    if kind is float:
        return rng.choice(FLOATS[1:4] if sensible else FLOATS)
    if kind in (int, positive, counts, count, integer, _numbers):
        return rng.choice(INTEGERS[1:6] if sensible else INTEGERS)
    return rng.choice(WORDS[:30] if sensible else [*WORDS, *INTEGERS])
