"""The same words make the same context: on the command line, in C and in Python.

Python is given objects, written beside each line of words; what nobody says is decided once.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn import cli
from kvarn.runtime import model as model_module
from kvarn.runtime.context.planning.plan import ROOM, ContextPlan
from kvarn.runtime.model import Model
from kvarn.system.errors import KvarnError
from lab.peers.model import write_model

from ...conftest import TINY

Host = Callable[..., Any]
TRAINED = 1024
"""The training length that the model's file says."""
N_PACK, N_LONG, N_FOLDER = 600, 1100, 40

CASES: dict[str, Callable[[dict[str, Path]], dict[str, Any]]] = {
    "": lambda at: {},
    "ctx=4K": lambda at: {"n_ctx": "4K"},
    "ctx=1M": lambda at: {"n_ctx": 1 << 20},
    "kv_type=q8_0/q4_0": lambda at: {"store": kvarn.Ram("q8_0", "q4_0")},
    "method=topk budget=1e-1% ctx=2048": lambda at: {
        "n_ctx": 2048,
        "attend": kvarn.TopK("0.1%"),
    },
    "method=topk budget=4K sink=1K": lambda at: {"attend": kvarn.TopK(4096, sink=1024)},
    "method=hash bits=64 rerank=2 budget=2%": lambda at: {"attend": kvarn.Hash(bits=64, rerank=2)},
    "method=magicpig tables=6x20 dense_layers=none": lambda at: {
        "attend": kvarn.MagicPig(tables="6x20", dense_layers="none")
    },
    "method=auto full_up_to=2K": lambda at: {"attend": kvarn.Auto(full_up_to=2048)},
    "keep=hashevict keep_budget=20%": lambda at: {"keep": kvarn.HashEvict("20%")},
    "keep=streaming keep_budget=512 ctx=300": lambda at: {
        "n_ctx": 300,
        "keep": kvarn.Streaming(512),
    },
    "keep=nacl keep_budget=1K keep_proxies=5% ctx=128K": lambda at: {
        "n_ctx": "128K",
        "keep": kvarn.NaCl(1024, proxies="5%"),
    },
    "keep=h2o keep_budget=400 method=topk budget=64": lambda at: {
        "keep": kvarn.H2O(400),
        "attend": kvarn.TopK(64),
    },
    "prefill=sparse prefill_k=64 prefill_from=1K": lambda at: {
        "prefill": kvarn.SparsePrefill(k=64, from_=1024)
    },
    "prefill=blocks:4K prefill_until=100K": lambda at: {
        "prefill": kvarn.BlocksPrefill(4096, 102400)
    },
    "pack=PACK": lambda at: {"store": kvarn.Disk(at["PACK"], read_only=True)},
    "pack=PACK method=topk budget=1%": lambda at: {
        "store": kvarn.Disk(at["PACK"], read_only=True),
        "attend": kvarn.TopK("1%"),
    },
    "pack=PACK method=hash prefill=exact io=pread": lambda at: {
        "store": kvarn.Disk(at["PACK"], read_only=True, io="pread"),
        "attend": kvarn.Hash(),
        "prefill": kvarn.Exact(),
    },
    "pack=LONG method=topk": lambda at: {
        "store": kvarn.Disk(at["LONG"], read_only=True),
        "attend": kvarn.TopK(),
    },
    "store=NEW kv_type=q8_0 method=topk": lambda at: {
        "store": kvarn.Disk(at["NEW"], "q8_0", "q8_0"),
        "attend": kvarn.TopK(),
    },
    "store=FOLDER": lambda at: {"store": kvarn.Disk(at["FOLDER"])},
    "device=cpu kv_on=auto ctx=0": lambda at: {"n_ctx": TRAINED, "kv_on": "auto"},
    "store=ram kv_type=q8_0": lambda at: {"store": kvarn.Ram("q8_0", "q8_0")},
    "store=SPARSE method=hash": lambda at: {
        "store": kvarn.Disk(at["SPARSE"]),
        "attend": kvarn.Hash(),
    },
}
"""Words, with names for places → the arguments of `Model.context` in Python."""
DECIDED: dict[str, dict[str, object]] = {
    "": {"ctx": TRAINED, "room": TRAINED, "prefill": "exact", "store": "ram", "kv_on": "host"},
    "ctx=4K": {"ctx": 4096, "room": 4096},
    "keep=hashevict keep_budget=20%": {"ctx": TRAINED, "room": 2**31 - 1},
    "keep=streaming keep_budget=512 ctx=300": {"ctx": 300, "room": 300},
    "prefill=blocks:4K prefill_until=100K": {"prefill": "blocks size=4096 until=102400"},
    "pack=PACK": {"ctx": TRAINED, "room": TRAINED - N_PACK, "prefill": "exact"},
    "pack=PACK method=topk budget=1%": {"prefill": "sparse index=sketch", "kv_type": "f16/f16"},
    "pack=PACK method=hash prefill=exact io=pread": {"prefill": "exact"},
    "pack=LONG method=topk": {"ctx": N_LONG + ROOM, "room": ROOM, "kv_type": "q8_0/q4_0"},
    "store=NEW kv_type=q8_0 method=topk": {"prefill": "exact", "kv_type": "q8_0/q8_0"},
    "store=FOLDER": {"ctx": TRAINED, "room": TRAINED - N_FOLDER},
    "store=SPARSE method=hash": {"prefill": "sparse k=32 index=sketch"},
}
"""What some of them are to be, by hand."""
REFUSED = {
    "method=full budget=1%": 2,
    "keep=tova keep_random=none": 2,
    "prefill_k=64": 2,
    "prefill=blocks:700": 2,
    "prefill=blocks:512 prefill_size=512": 2,
    "prefill=sparse:512": 2,
    "pack=PACK store=FOLDER": 2,
    "io=pread": 2,
    "pack=./none": 1,
    "method=topk budget=lots": 2,
    "method=topk budget=101%": 2,
    "keep=streaming keep_budget=0": 2,
    "keep=nacl keep_proxies=many": 2,
    "ctx=12x": 2,
    "method=topk sink=-1": 2,
    "kv_type=q9": 2,
    "method=guess": 2,
}
"""Words that make no context → the command's exit code."""


class Planned(KvarnError):
    """Raised in place of opening a context."""


@dataclass
class Found:
    """What each front end made of each line of words."""

    python: dict[str, ContextPlan]
    command: dict[str, ContextPlan]
    c: dict[str, dict[str, Any] | str]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, whose file says another training length."""
    short = tmp_path_factory.mktemp("model") / "short.gguf"
    write_model(short, "f16", replace(TINY, n_ctx=TRAINED))
    return short


@pytest.fixture(scope="module")
def places(path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("places")
    at = {name: folder / name.lower() for name in ("PACK", "LONG", "FOLDER", "SPARSE", "NEW")}
    model, ids = kvarn.load(path), [1 + i % 50 for i in range(N_LONG)]
    kvarn.build_pack(model, at["PACK"], ids[:N_PACK])
    kvarn.build_pack(model, kvarn.Disk(at["LONG"], "q8_0", "q4_0"), ids, n_ctx=2048)
    for name, prefill in (("FOLDER", None), ("SPARSE", kvarn.SparsePrefill(k=32))):
        with model.context(store=kvarn.Disk(at[name]), prefill=prefill) as context:
            context.prefill(ids[:N_FOLDER])
    return at


def placed(line: str, places: dict[str, Path]) -> dict[str, str]:
    """The words of a line with their values."""
    words = dict(word.split("=", 1) for word in line.split())
    return {word: str(places.get(value, value)) for word, value in words.items()}


def flags(words: dict[str, str]) -> list[str]:
    spelt = {"store": "kv"}
    return [f"--{spelt.get(word, word).replace('_', '-')}={words[word]}" for word in words]


@pytest.fixture(scope="module")
def found(path: Path, places: dict[str, Path], host: Host) -> Found:
    plans: list[ContextPlan] = []

    def planned(model: Model, plan: ContextPlan) -> None:
        plans.append(plan)
        raise Planned("it is known")

    model, python, command = kvarn.load(path), {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "Context", planned)
        for line, arguments in CASES.items():
            with pytest.raises(Planned):
                model.context(**arguments(places))
            python[line] = plans.pop()
            words = ["run", "-m", str(path), "-p", "x", *flags(placed(line, places))]
            assert cli.main(words) == 1
            command[line] = plans.pop()
    lines = [*CASES, *REFUSED]
    answers = host("host.py", "contexts", path, json.dumps([placed(x, places) for x in lines]))
    return Found(python, command, dict(zip(lines, answers)))


def plain(notices: Sequence[str]) -> list[str]:
    """Lines in which options are written as in C: `--ctx` and `n_ctx` as `ctx`."""
    return [re.sub(r"--|n_(?=ctx)", "", line) for line in notices]


@pytest.mark.parametrize("line", CASES)
def test_the_same_words_make_the_same_context(line: str, found: Found) -> None:
    plan = found.python[line]
    command, told = found.command[line], found.c[line]
    assert replace(command, notices=()) == replace(plan, notices=())
    assert plain(command.notices) == plain(plan.notices)
    assert isinstance(told, dict), told
    assert {name: told[name] for name in plan.as_dict()} == plan.as_dict()
    assert plain(told["notices"][: len(plan.notices)]) == plain(plan.notices)


@pytest.mark.parametrize("line", DECIDED)
def test_what_nobody_says_is_decided(line: str, found: Found) -> None:
    facts = found.python[line].as_dict()
    assert {name: facts[name] for name in DECIDED[line]} == DECIDED[line]


@pytest.mark.parametrize("line", REFUSED)
def test_the_same_words_are_refused(
    line: str, found: Found, path: Path, places: dict[str, Path], capsys: Any
) -> None:
    """In the same words, but for how options are written."""
    is_one_value = False
    try:
        code = cli.main(["run", "-m", str(path), "-p", "x", *flags(placed(line, places))])
    except SystemExit as stopped:
        code, is_one_value = stopped.code, True
    said, told = capsys.readouterr().err, found.c[line]
    assert code == REFUSED[line] and said.count("\n") == 1
    assert isinstance(told, str)
    if is_one_value:
        expected = re.search(r"expected (one of )?(.*?)(, found|$)", told)
        assert expected is not None and f"expected {expected[2]}" in said.replace("one of ", "")
    else:
        written = re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), said)
        assert told in re.sub(r"\bkv\b", "store", written)
