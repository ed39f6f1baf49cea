"""Every command and every snippet of README.md, CONTRIBUTING.md and docs/, typed as it is written,
or as `document_typed` says instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvarn.cli import build_parser, main
from kvarn.commands import COMMANDS, REAL_MODEL
from kvarn.commands.parsing.parser import Parser

from ..convert import hf_folders, hub_server
from .document_commands import DOCUMENTS, PROGRAMS, ROOT, Step, blocks
from .document_not_typed import NOT_TYPED
from .document_reader import Reader
from .document_typed import FILLED, MAKEFILE, SMALLER, lacks_torch, typed

READ = {str(document.relative_to(ROOT)): blocks(document) for document in DOCUMENTS}
TYPED = {
    name: [steps for block in found if (steps := [one for step in block for one in typed(step)])]
    for name, found in READ.items()
}
STEPS = {step.text: step for found in READ.values() for block in found for step in block}


@cache
def parser() -> Parser:
    """Of the whole program; to declare all options takes long."""
    return build_parser(*COMMANDS)


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


@pytest.mark.parametrize("document", [name for name, steps in TYPED.items() if steps])
def test_what_documents_say_works(document: str, reader: Reader) -> None:
    """All of a document in one process, which starts once."""
    written = TYPED[document]
    outcomes = reader.type(written, 600)
    assert len(outcomes) == sum(map(len, written))
    check(outcomes)


OF_DEFAULT_MODEL = ("run", "chat", "bench", "perplexity", "pack", "eval")
"""Commands that compute, with the default model where they name none."""


FIRST = ("README.md", "docs/tutorial.md", "docs/guides/long-texts.md", "docs/guides/packs.md")
"""What new users read."""


def test_build_compiles_what_new_users_need(reader: Reader) -> None:
    """After `kvarn build`, no command of FIRST with the default model compiles a kernel."""
    written = [
        [
            one
            for step in block
            for one in typed(step)
            if one.words[:1] == ["kvarn"]
            and one.words[1] in OF_DEFAULT_MODEL
            and not {"-hf", "model.gguf"} & set(one.words)
        ]
        for name in FIRST
        for block in READ[name]
    ]
    (rehearsed,) = reader.type([], 600, "--rehearsed")
    outcomes = reader.type([block for block in written if block], 600)
    assert len(outcomes) > 15 and any(one["kernels"] for one in outcomes)
    missing = {one["text"]: sorted({*one["kernels"]} - {*rehearsed}) for one in outcomes}
    assert {text: kernels for text, kernels in missing.items() if kernels} == {}


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
    """The command of README.md for long texts, with a text that is longer than its `--ctx`."""
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
        names = [action for action in parser()._actions if action.choices]
        if words:
            assert words[0] in names[0].choices
        if not step.mention:
            parser().parse_args(words)
    elif program != "kvarn":
        assert text in NOT_TYPED or words[0] == "-m"


@pytest.mark.parametrize("text", [*NOT_TYPED, *FILLED, *SMALLER])
def test_lists_name_what_documents_say(text: str) -> None:
    assert text in STEPS, f"no document says {text!r} any more: remove it from the list"
