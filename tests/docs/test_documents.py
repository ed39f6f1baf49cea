"""Every command and every snippet of README.md and docs/, typed as it is written.

What a test cannot type is listed here with its reason; what is neither typed nor listed fails. So
does an entry of these lists that no document has any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvarn.cli import build_parser, main
from kvarn.commands import COMMANDS, REAL_MODEL

from ..convert import hf_folders, hub_server
from .document_commands import DOCUMENTS, PROGRAMS, ROOT, Step, blocks
from .document_reader import Reader

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

NOT_TYPED = {
    "pip install .": "installs from the package registry",
    "pip install '.[train]'": "installs PyTorch from the package registry",
    "pip install 'kvarn[ann]'": "installs faiss from the package registry",
    "pip install '.[cuda]'": "installs PyTorch from the package registry",
    "kvarn run model.gguf -f book.txt --device cuda --method hash": "needs a GPU",
    "kvarn doctor --compile": "needs a GPU",
    "make gpu-check": "needs a GPU",
    "make gpu-bench MODEL=model.gguf": "needs a GPU",
    "make test": "runs this test",
    "make test-cuda": "installs PyTorch from the package registry",
    "make coverage": "runs this test",
    "make lint": "installs ruff and mypy",
    "kvarn build": "compiles all kernels",
    "make peers": "builds llama.cpp, and measures for half an hour",
    "make longctx": "builds llama.cpp, and measures for an hour",
    "python -m kvarn.evals.longctx --depths 1048576 --methods hash --no-prompts": "takes 22 GB",
    "kvarn bench -m 1b-q4_0.gguf -p 512,20 -n 0 -d 32768,131072 --fill 1024 -r 1 --kv-type q8_0": (
        "measures a model that make longctx writes"
    ),
    "kvarn bench -m 1b-q4_0.gguf --kv-type q8_0 -p 0 -n 16 -d 1M --method hash --budget 1% "
    "--kv DIR": "writes 18 GB",
    "make libkvarn": "installs cffi, and needs a C compiler",
    "python -m kvarn.runtime.capi --out build/libkvarn": "needs cffi and a C compiler",
    "python -m kvarn.runtime.capi --out DIR": "needs cffi and a C compiler",
    "make libkvarn-bundle": "compiles kernels for two CPUs, and needs a C compiler",
    "python -m kvarn.runtime.capi --bundle DIR": "needs cffi and a C compiler",
    "python -m kvarn.cuda_ops.ahead 89 --only NAME": "needs PyTorch and Triton",
    "make mini": "trains for hours",
    "make mini TEXT=FOLDER": "trains for hours",
    "make mini SHAPE=llama": "trains for hours",
    "make mini SHAPE=gqa": "trains for hours",
    "make results TEXT=FOLDER": "measures for ten hours",
}

NEEDS_TORCH = ("kvarn", "learn")

FILLED = {
    "kvarn COMMAND --help": [f"kvarn {name} --help" for name in COMMANDS],
    "kvarn convert [SRC] OUT.gguf [--type q4_k_m]": [
        "kvarn convert model.gguf OUT.gguf --type q4_k_m"
    ],
    "kvarn run [MODEL] [-p TEXT | -f FILE | -]": [
        "kvarn run",
        "kvarn run model.gguf -p TEXT",
        "kvarn run -f text.txt",
        "kvarn run model.gguf -",
    ],
    "kvarn run --instruct -p TEXT": [f"kvarn run -hf {REAL_MODEL} --instruct -p TEXT"],
    "kvarn run -hf ORGANISATION/MODEL:Q4_K_M": [f"kvarn run -hf {REAL_MODEL} -p TEXT"],
    "kvarn chat [MODEL]": ["kvarn chat model.gguf -n 16"],
    "kvarn pack build|ls|info|verify|rm|export|import": [
        f"kvarn pack {name} --help" for name in "build ls info verify rm export import".split()
    ],
    "kvarn inspect FILE": ["kvarn inspect model.gguf"],
    "kvarn tokenize [-m MODEL] [TEXT … | -f FILE]": [
        "kvarn tokenize TEXT",
        "kvarn tokenize -f text.txt",
        "kvarn tokenize -m model.gguf",
    ],
    "kvarn bench [MODEL] -p 512 -n 128 -d 0": [
        "kvarn bench -p 512 -n 128 -d 0 -r 1",
        "kvarn bench model.gguf -p 512 -n 128 -d 0 -r 1",
    ],
    "kvarn perplexity [MODEL] -f FILE": [
        "kvarn perplexity -f book.txt",
        "kvarn perplexity model.gguf -f book.txt",
    ],
    "kvarn perplexity -f FILE --ctx 32768 --prefill sparse": [
        "kvarn perplexity -f book.txt --prefill sparse"
    ],
    "kvarn eval [MODEL] --method full,hash": [
        "kvarn eval --method full,hash --length 256 --contexts 1 --questions 1"
    ],
    "kvarn learn MODEL --text FILE …": [
        "kvarn learn model.gguf --text book.txt --length 1024 --tokens 1024"
    ],
    "kvarn imatrix MODEL -f FILE -o OUT": ["kvarn imatrix model.gguf -f text.txt -o OUT"],
    "kvarn build [MODEL]": ["kvarn build model.gguf --kv-type f16 --method topk"],
    "kvarn completion bash|zsh|tcsh": [
        f"kvarn completion {shell}" for shell in ("bash", "zsh", "tcsh")
    ],
    "kvarn doctor [--roofline] [--compile]": ["kvarn doctor"],
    "kvarn lens SELECTIONS.bin -o page.html": [
        "kvarn run -f book.txt -n 4 --method hash --budget 8 --record-selections SELECTIONS.bin",
        "kvarn lens SELECTIONS.bin -o page.html",
    ],
    "kvarn bench --replay FILE": [
        "kvarn bench -d 300 -p 0 -n 2 -r 1 --method hash --budget 8 --sink 4 --window 8"
        " --record-selections FILE",
        "kvarn bench --replay FILE -d 300 -p 0 -n 2 -r 1",
    ],
    "python -m kvarn.evals.prompts -f TEXT": [
        "python -m kvarn.evals.prompts -f book.txt -n 2048 --k 16 --from 1024 --blocks 1"
    ],
    "kvarn eval --text TEXTS --contexts 6 --questions 30": [
        "kvarn eval --text TEXTS --contexts 1 --questions 1 --length 256"
    ],
}
"""Commands with words that a reader replaces, and what such a reader types."""

FEW = "--length 256 --contexts 1 --questions 1"
SMALLER = {
    "kvarn chat model.gguf": "kvarn chat model.gguf -n 16",
    f"kvarn chat -hf {REAL_MODEL}": f"kvarn chat -hf {REAL_MODEL} -n 16",
    "kvarn chat --pack book": "kvarn chat --pack book -n 16",
    "kvarn chat --pack book --session talk": "kvarn chat --pack book --session talk -n 16",
    "kvarn doctor --roofline": "kvarn doctor",
    "kvarn bench -d 8192,131072 -p 0 --method hash --kv-type q8_0": (
        "kvarn bench -d 512 -p 0 --method hash --kv-type q8_0 -n 8 -r 1"
    ),
    "kvarn bench -p 512,20 -d 128K --kv-type q8_0 --prefill sparse": (
        "kvarn bench -p 512,20 -d 9K -n 0 -r 1 --fill 512 --kv-type q8_0 --prefill sparse"
    ),
    "kvarn eval --task needle,kv,two-hop --length 4096,16384 --method full,topk,hash --budget 2%": (
        f"kvarn eval --task needle,kv,two-hop --method full,topk,hash --budget 2% {FEW}"
    ),
    "kvarn eval --task needle,kv,two-hop,chains --length 16384 --contexts 10 --questions 25 "
    "--seed 70411 --budget 2% --method full,hash,hash:rerank=2": (
        "kvarn eval --task needle,kv,two-hop,chains --seed 70411 --budget 2% "
        f"--method full,hash,hash:rerank=2 {FEW}"
    ),
    "kvarn eval --task needle,kv,records,two-hop,homes,chains --length 16384 "
    "--prefill exact,sparse": (
        "kvarn eval --task needle,kv,records,two-hop,homes,chains --prefill exact,sparse "
        "--length 512 --contexts 1 --questions 1"
    ),
    "kvarn eval -m model.gguf --task needle,kv,two-hop --length 4096,16384 --method "
    "full,topk,topk:index=flat,hash,hash:encoders=simhash --budget 2%,6.25% --probe 8": (
        "kvarn eval -m model.gguf --task needle,kv,two-hop --method "
        f"full,topk,topk:index=flat,hash,hash:encoders=simhash --budget 2%,6.25% --probe 8 {FEW}"
    ),
    "kvarn learn model.gguf --text book.txt": (
        "kvarn learn model.gguf --text book.txt --length 1024 --tokens 1024"
    ),
    "kvarn learn model.gguf --text notes.txt book.txt --length 16384": (
        "kvarn learn model.gguf --text notes.txt book.txt --length 1024 --tokens 1024"
    ),
}
"""Commands that take minutes, and answers that end when they like; and what the quick test types
instead. The slow one types them as they are written, but for evaluations, which ask thousands of
questions for an hour."""

READ = {document.name: blocks(document) for document in DOCUMENTS}
STEPS = {step.text: step for found in READ.values() for block in found for step in block}


def typed(step: Step, as_written: bool = False) -> list[Step]:
    """What is typed for a step of a document."""
    text = step.text
    if step.mention or text in NOT_TYPED or (lacks_torch(step)):
        return []
    if text == "make run":
        return recipe("run")
    if text in FILLED:
        return [] if as_written else [Step("shell", filled) for filled in FILLED[text]]
    return [step if as_written else Step(step.kind, SMALLER.get(text, text))]


def lacks_torch(step: Step) -> bool:
    return tuple(step.text.split()[:2]) == NEEDS_TORCH and find_spec("torch") is None


def recipe(target: str) -> list[Step]:
    """What `make` runs for a target once everything is installed."""
    variables = dict(re.findall(r"^(\w+) [?:]?= ?(.*)$", MAKEFILE, re.MULTILINE))
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None
    lines = found[1].replace("$(BIN)/", "").splitlines()
    return [
        Step("shell", re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], line.strip()))
        for line in lines
    ]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hub_server.Hub]:
    """A hub on the loopback, with small models under the names that the documents pull."""
    folder, ready, home = (tmp_path_factory.mktemp(name) for name in ("saved", "ready", "home"))
    hf_folders.write_llama(folder)
    repository, _, quant = REAL_MODEL.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVARN_HOME", str(home))
        template = folder / "chat_template.jinja"
        template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
        assert main(["convert", str(folder), str(ready / f"model-{quant.lower()}.gguf")]) == 0
        template.unlink()
    with hub_server.serve() as served:
        served.add_folder("ORGANISATION/MODEL", folder)
        served.add_folder(repository, ready)
        yield served


@pytest.fixture
def reader(tmp_path: Path, tiny_path: Path, hub: hub_server.Hub) -> Reader:
    return Reader(tmp_path, tiny_path, hub)


def check(outcomes: list[dict[str, Any]]) -> None:
    """No step failed, and what generates text did."""
    failed = [
        f"{one['text']}\n{one['err']}"
        for one in outcomes
        if one["code"] != 0
        or "Traceback" in one["err"]
        or (one["text"].startswith("kvarn run") and not one["out"])
    ]
    assert not failed, "\n".join(failed)


def test_what_documents_say_works(reader: Reader) -> None:
    """All in one process, which starts once."""
    written = [
        [one for step in block for one in typed(step)] for found in READ.values() for block in found
    ]
    outcomes = reader.type([block for block in written if block], 600)
    assert len(outcomes) == sum(map(len, written))
    check(outcomes)


OF_DEFAULT_MODEL = ("run", "chat", "bench", "perplexity", "pack", "eval")
"""Commands that compute, with the default model where they name none."""


def test_build_compiles_what_the_readme_needs(reader: Reader) -> None:
    """After `kvarn build`, no command of README with the default model compiles a kernel."""
    readme = READ["README.md"]
    written = [
        [
            one
            for step in block
            for one in typed(step)
            if one.words[:1] == ["kvarn"]
            and one.words[1] in OF_DEFAULT_MODEL
            and not {"-hf", "model.gguf"} & set(one.words)
        ]
        for block in readme
    ]
    outcomes = reader.type([block for block in written if block], 600, "--rehearsed")
    assert len(outcomes) > 15
    assert {one["text"]: one["kernels"] for one in outcomes if one["kernels"]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in SMALLER if not text.startswith("kvarn eval")])
def test_long_commands_work_as_written(text: str, reader: Reader) -> None:
    """With the steps of their block that come before."""
    if lacks_torch(STEPS[text]):
        pytest.skip("PyTorch is not installed")
    block = next(block for found in READ.values() for block in found if STEPS[text] in block)
    before = [one for step in block[: block.index(STEPS[text])] for one in typed(step)]
    check(reader.type([[*before, *typed(STEPS[text], as_written=True)]], 3600))


@pytest.mark.slow
@pytest.mark.data
def test_a_novel_longer_than_the_context_is_read(reader: Reader, data_dir: Path) -> None:
    """The command of README for long texts, with a text that is longer than its `--ctx`."""
    (written,) = (step for text, step in STEPS.items() if "--keep hashevict" in text)
    stats = Step("shell", f"{written.text} --stats")
    novel = max((data_dir / "text").glob("*.txt"), key=lambda path: path.stat().st_size)
    reader.book = novel.read_text(encoding="utf-8")
    (outcome,) = reader.type([[stats]], 3600)
    check([outcome])
    assert "reading beyond the 131,072 tokens" in outcome["err"]
    assert "kept 26215 of " in outcome["err"]


@pytest.mark.parametrize("text", [t for t, step in STEPS.items() if step.kind == "shell"])
def test_commands_are_known(text: str) -> None:
    """Those that are not typed name commands and targets that there are."""
    step = STEPS[text]
    program, *words = step.words
    assert program in PROGRAMS
    if program == "make":
        assert words[0] in re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE)
        assert text in NOT_TYPED or text == "make run"
    elif program == "kvarn" and text not in FILLED:
        names = [action for action in build_parser(*COMMANDS)._actions if action.choices]
        if words:
            assert words[0] in names[0].choices
        if not step.mention:
            build_parser(*COMMANDS).parse_args(words)
    elif program != "kvarn":
        assert text in NOT_TYPED or words[0] == "-m"


@pytest.mark.parametrize("text", [*NOT_TYPED, *FILLED, *SMALLER])
def test_lists_name_what_documents_say(text: str) -> None:
    assert text in STEPS, f"no document says {text!r} any more: remove it from the list"
