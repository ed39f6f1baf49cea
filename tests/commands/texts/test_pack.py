"""`kvarn pack` and the commands that go on from packs."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.home import home, pack_path, session_path
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk, PackError

from ..pack_runner import TEXT, Kvarn, ids_of


def test_a_question_to_a_pack_is_answered_as_after_reading(
    run: Kvarn, tiny: Model, tmp_path: Path
) -> None:
    assert f"{len(ids_of(tiny, TEXT)):,} tokens" in run.build("mill")
    question = ["-p", "Who is there?", "-n", "8", "--temp", "0"]
    stats = tmp_path / "stats.json"
    code, out, err = run("run", "--pack", "mill", *question, "--stats-json", str(stats))
    assert code == 0
    assert f"using the model of the pack: {run.model[1]}" in err
    context = tiny.context(4096)
    context.prefill(ids_of(tiny, TEXT))
    follow = tiny.tokenizer.encode("Who is there?", bos=False, special=True)
    assert json.loads(stats.read_text())["prefilled_tokens"] == len(follow)
    greedy = kvarn.Sampler(temp=0)
    assert out == "".join(context.generate(follow, 8, greedy))
    assert run("run", "--pack", "mill", *question, "--io", "pread")[1] == out
    # The pack itself did not change.
    assert run("pack", "verify", "mill")[0] == 0
    assert json.loads(run("pack", "info", "mill", "--json")[1])["n_tokens"] == len(
        ids_of(tiny, TEXT)
    )


def test_an_empty_text_makes_no_pack(
    run: Kvarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a vocabulary that begins each text with a token, too."""
    empty = tmp_path / "empty.txt"
    empty.touch()
    for _ in range(2):
        code, out, err = run("pack", "build", *run.model, "-f", str(empty), "-o", "none")
        assert (code, out) == (1, "") and "the files are empty" in err
        monkeypatch.setattr("kvarn.runtime.context.reading.prompt.prompt_ids", lambda *_: [1])


def test_ls_and_info_tell_what_is_there(run: Kvarn, tmp_path: Path) -> None:
    code, out, err = run("pack", "ls")
    assert (code, out) == (0, "")
    assert "no packs yet" in err
    run.build("mill", "--kv-type", "q8_0/q4_0")
    run.build(str(tmp_path / "elsewhere"))
    rows = json.loads(run("pack", "ls", "--json")[1])
    assert [(Path(row["path"]).name, row["kv"], row["complete"]) for row in rows] == [
        ("mill", "q8_0/q4_0", True)
    ]
    head, row = run("pack", "ls")[1].splitlines()
    assert head.split()[:3] == ["name", "kind", "tokens"]
    assert row.split()[:2] == ["mill", "pack"]
    out = run("pack", "info", str(tmp_path / "elsewhere"))[1]
    assert "KV cache    f16" in out
    (tmp_path / "home" / "packs" / "mill" / "pack.json").write_text("{}")
    code, out, err = run("pack", "ls")
    assert (code, out) == (0, "")
    assert "pack.json" in err


def test_building_twice_reads_nothing_again(run: Kvarn) -> None:
    run.build("mill")
    assert ", 0 of them read" in run.build("mill")
    Path(run.text).write_text("Another text")
    code, _, err = run("pack", "build", *run.model, "-f", run.text, "-o", "mill")
    assert code == 1
    assert "another text" in err


def test_a_build_says_how_a_pack_was_read(run: Kvarn) -> None:
    assert "prefill" not in run.build("mill")
    read = run.build("blocks", "--prefill", "blocks:512")
    again = run.build("blocks")
    assert "(prefill: blocks" in read and "0 of them read" in again and "(prefill: blocks" in again


def test_a_session_is_no_pack(run: Kvarn) -> None:
    session_path("talk").mkdir(parents=True)
    for line in (["run", "--pack", "talk", "-p", "x"], ["ask", "talk", "x"]):
        code, _, err = run(*line)
        assert code == 1 and "talk is a session: `kvarn chat --session talk`" in err, err


def test_documents_are_text_throughout(run: Kvarn, tiny: Model) -> None:
    """A control token that is written out in a document does not become one."""
    eos = tiny.tokenizer.piece(tiny.tokenizer.eos_id).decode()
    Path(run.text).write_text(f"The {eos} end")
    run.build("mill")
    with tiny.context(64, store=Disk(pack_path("mill"), read_only=True)) as context:
        assert tiny.tokenizer.eos_id not in context.tokens
        assert tiny.tokenizer.decode(context.tokens).endswith(f"The {eos} end")


def test_files_are_read_as_one_text(run: Kvarn, tmp_path: Path, tiny: Model) -> None:
    parts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    parts[0].write_text("The mill")
    parts[1].write_text("stood")
    code, _, _ = run("pack", "build", *run.model, "-f", *map(str, parts), "-o", "mill")
    assert code == 0
    with tiny.context(64, store=Disk(pack_path("mill"), read_only=True)) as context:
        assert context.tokens == ids_of(tiny, "==> a.txt <==\nThe mill\n==> b.txt <==\nstood")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("pack build -f {text} -o mill -c 20", "more than the 20 of the context: use --ctx"),
        ("pack build -f {empty} -o ..", "'..' is not a name"),
        ("pack info none", "none: no such folder; `kvarn pack ls`"),
        ("pack verify none", "none: no such folder; `kvarn pack ls`"),
        ("pack rm none", "nothing was removed"),
        ("pack export none -o x", "none: no such folder; `kvarn pack ls`"),
        ("pack import {text} -o new", "not an exported context pack"),
        ("pack import {text} -o {text}/below", "text.txt: "),
        ("pack export none -o {empty}/below", "no such folder"),
        ("run --pack none -p x", "none: no such folder; `kvarn pack ls`"),
        ("chat --pack none", "none: no such folder; `kvarn pack ls`"),
        ("run --pack mill --kv there -p x", "two places for one KV cache"),
    ],
)
def test_wrong_uses_are_one_line(run: Kvarn, tmp_path: Path, arguments: str, told: str) -> None:
    (tmp_path / "empty").write_text("")
    line = arguments.format(text=run.text, empty=tmp_path / "empty").split()
    if line[1] == "build":
        line += run.model
    code, out, err = run(*line)
    assert (code, out) == (2 if "two places" in told else 1, "")
    assert told in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        "pack build -f {text} -o {text}",
        "pack build -f {text} -o {text}/below",
        "pack build --each -f {text} -o {text}/",
        "run -p x --kv {text}",
        "chat --session {text}",
    ],
)
def test_a_file_is_not_taken_for_a_new_pack(run: Kvarn, tmp_path: Path, words: str) -> None:
    """Before the model is opened, which here is none."""
    (tmp_path / "empty").touch()
    code, out, err = run(*words.format(text=run.text).split(), "-m", str(tmp_path / "empty"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"{run.text} is a file: expected a folder, or a name for a new one" in err


def test_export_and_import_make_the_same_pack(run: Kvarn, tmp_path: Path) -> None:
    run.build("mill")
    file = tmp_path / "mill.kvpack"
    code, out, err = run("pack", "export", "mill", "-o", str(file))
    assert (code, out) == (0, "") and f"to {file}, " in err
    assert run("pack", "import", str(file), "-o", "copy")[0] == 0
    question = ["-p", "Who is there?", "-n", "8", "--temp", "0"]
    assert run("run", "--pack", "copy", *question)[1] == run("run", "--pack", "mill", *question)[1]
    code, _, err = run("pack", "import", str(file))
    assert code == 1
    assert "exists already" in err
    with pytest.raises(SystemExit, match="2"):
        run("pack", "export", "mill", "-o", "")
    assert f"removed {pack_path('mill')}" in run("pack", "rm", "mill")[2]
    assert run("pack", "import", str(file))[0] == 0
    assert run("pack", "verify", "mill")[0] == 0


def test_damaged_and_hostile_archives_leave_nothing(run: Kvarn, tmp_path: Path) -> None:
    run.build("mill")
    whole = tmp_path / "mill.kvpack"
    run("pack", "export", "mill", "-o", str(whole))
    data = whole.read_bytes()
    source, bad = random.Random(0), tmp_path / "bad.kvpack"
    variants = [data[: len(data) // 3], b"", bytes(2048)]
    with tarfile.open(whole) as archive:
        used = next(entry for entry in archive if entry.name == "layer-001.kv")
    flipped = bytearray(data)
    flipped[used.offset_data + source.randrange(1000)] ^= 4
    variants.append(bytes(flipped))
    for name in ("../evil", "/tmp/evil", "layer-000.kv", "other"):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.addfile(tarfile.TarInfo(name))
        variants.append(stream.getvalue())
    link = tarfile.TarInfo("pack.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(link)
    for variant in [*variants, stream.getvalue()]:
        bad.write_bytes(variant)
        code, _, err = run("pack", "import", str(bad))
        assert code == 1, err
        assert len(err.splitlines()) == 1
        assert [path.name for path in (home() / "packs").iterdir()] == ["mill"]


def test_rm_asks_the_writer(run: Kvarn, tiny: Model) -> None:
    run.build("mill")
    with tiny.context(4096, store=Disk(pack_path("mill"))):
        code, _, err = run("pack", "rm", "mill")
        assert code == 1
        assert "is writing to it" in err
    assert run("pack", "rm", "mill")[0] == 0
    assert not pack_path("mill").exists()


def test_rm_leaves_files_of_others_and_says_so(run: Kvarn) -> None:
    run.build("mill")
    (pack_path("mill") / "notes.txt").write_text("mine")
    code, _, err = run("pack", "rm", "mill")
    assert code == 0
    assert "but for files that are not kvarn's: notes.txt" in err
    assert [path.name for path in pack_path("mill").iterdir()] == ["notes.txt"]


def test_names_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVARN_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert pack_path("book") == tmp_path / "kvarn" / "packs" / "book"
    assert pack_path("./book") == Path("./book")
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "mine"))
    assert session_path("talk") == tmp_path / "mine" / "sessions" / "talk"


def command(run: Kvarn, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvarn", "pack", *arguments, *run.model, "-f", run.text]


@pytest.fixture
def slow_text(run: Kvarn) -> Iterator[Kvarn]:
    """A text that takes some seconds to read."""
    Path(run.text).write_text(TEXT * 4)
    yield run


def wait_for_tokens(path: Path, n: int) -> None:
    """Until a reader finds n tokens committed by the process beside it."""
    from kvarn.runtime.packs.pack import pack_info

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if pack_info(path).n_tokens >= n:
                return
        except PackError:
            pass  # not made yet
        time.sleep(0.005)
    raise AssertionError(f"{path} did not come to {n} tokens")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_build_goes_on(slow_text: Kvarn, tiny: Model, how: signal.Signals) -> None:
    run, path = slow_text, pack_path("mill")
    ids = ids_of(tiny, TEXT * 4)
    arguments = command(run, "build", "-o", "mill", "-c", "100000")
    with subprocess.Popen(arguments, env=dict(os.environ), stderr=subprocess.PIPE) as process:
        wait_for_tokens(path, 1024)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert b"run the same command to resume" in err
        assert b"Traceback" not in err
    code, out, _ = run("pack", "verify", "mill")
    assert code == 0
    done = json.loads(run("pack", "info", "mill", "--json")[1])["n_tokens"]
    if how == signal.SIGINT:
        assert f"keeps {done:,} of {len(ids):,} tokens".encode() in err
    assert 1024 <= done < len(ids)
    assert f"no damage found; {done:,} of {len(ids):,} tokens are read" in out
    assert "not finished" in run("run", "--pack", "mill", "-p", "x", "-n", "1")[2]
    left = len(ids) - done
    assert f"{left:,} of them read" in run.build("mill", "-c", "100000")
    straight = tiny.context(100_000)
    with tiny.context(100_000, store=Disk(path, read_only=True)) as context:
        assert context.tokens == ids
        np.testing.assert_array_equal(context.logits, straight.prefill(ids))
