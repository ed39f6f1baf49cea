"""`kvarn shard` and `kvarn run --shards`, as users type them."""

import shlex
import socket
from pathlib import Path

import pytest

from ...runtime.shards.processes import shards
from ..pack_runner import Kvarn


@pytest.fixture
def pack(run: Kvarn, tmp_path: Path) -> Path:
    text = "".join(f"The mill number {i} stood by the river. " for i in range(90))
    Path(run.text).write_text(text)  # 512 tokens of bytes: some three segments
    run.build("mill", "--method", "hash")
    return tmp_path / "home" / "packs" / "mill"


@pytest.mark.parametrize("method", ["full", "hash --budget 40", "topk --index flat --budget 40"])
def test_a_question_to_a_pack_over_shards(run: Kvarn, pack: Path, method: str) -> None:
    words = f"run --pack mill --temp 0 -n 12 -p who --prefill exact --method {method}".split()
    code, expected, _ = run(*words)
    assert code == 0 and expected
    with shards(pack, (0, 1), (1, 3), options=("--token", "k")) as (first, second):
        addresses = f"{first.address},{second.address}"
        code, out, err = run(*words, "--shards", addresses, "--token", "k")
        assert (code, out) == (0, expected), err
        each = run(*words, "--shards", addresses, "--token", "k", "--shards-choice", "each")
        assert each[0] == 0 and (each[1] == expected or method != "full")
        code, out, err = run(*words, "--shards", addresses)
        assert (code, out) == (1, "") and f"shard {first.address}: the token is wrong" in err
        code, out, err = run(*words, "--shards", second.address, "--token", "k")
        assert (code, out) == (1, "") and "holds tokens from 1,024 on" in err
    start = f"listening on {first.address} for tokens 0 to 1,023 of pack"
    assert start in first.line and "; Ctrl-C ends it" in first.line


def test_tokens_are_read_from_files(run: Kvarn, pack: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    with shards(pack, (0, 2), options=("--token-file", str(file))) as (shard,):
        words = f"run --pack mill -n 1 -p who --shards {shard.address} --token-file".split()
        assert run(*words, str(file))[0] == 0
        file.write_text("\n")
        assert "has no token on its first line" in run(*words, str(file))[2]


def test_a_port_that_is_taken_is_named_once(run: Kvarn, pack: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        _, _, err = run(*f"shard mill --segments 0:1 --listen {address}".split())
    assert err == f"kvarn: cannot listen on {address}: Address already in use\n"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("shard mill --segments 0:2 --listen 0.0.0.0:0", 2, "machines ask: give --token KEY"),
        ("shard mill --segments 0:9", 1, "3 full segments of 1,024 tokens (0:3), found --seg"),
        ("shard mill --segments 64:", 1, "1,024 tokens (0:3), found --segments 64:\n"),
        ("shard mill --segments 0:1 --listen nowhere", 2, "expected HOST:PORT"),
        ("shard mill --segments 0:1 --listen 192.0.2.1:9 --token k", 1, "cannot listen on"),
        ("shard none --segments 0:1", 1, "no such folder"),
        ("run -p x --shards 127.0.0.1:1", 2, "--shards needs --pack"),
        ("run -p x --shards-choice each", 2, "--shards-choice has no effect without --shards"),
        ("run --kv d -p x --pack mill --shards h:1", 2, "exclude each other"),
        ("run -p x --token k", 2, "--token has no effect without --shards"),
        (f"run -p x --token-file '{__file__}'", 2, "--token-file has no effect without --shards"),
        ("run -p x --shards h:1 --token ''", 2, "a key is empty"),
        ("run -p x --shards h:1 --token 'a\tb'", 2, "not printable ASCII"),
        ("run -p x --shards h:1 --token é", 2, "not printable ASCII"),
        ("run --pack mill -p x --shards h:1 --prefill sparse", 2, "--prefill sparse exclude each"),
        ("run --pack mill -p x --shards h:1 --prefill blocks", 2, "--prefill blocks exclude each"),
        ("run --pack mill -p x --shards 127.0.0.1", 2, "expected HOST:PORT"),
        ("run --pack mill -p x --shards h:1 --method auto", 2, "do not serve --method auto"),
        ("run --pack mill -p x --shards h:1 --keep streaming", 2, "--keep streaming exclude"),
    ],
)
def test_what_cannot_be_is_one_line(
    run: Kvarn, pack: Path, line: str, code: int, words: str
) -> None:
    ended, out, err = run(*shlex.split(line))
    assert (ended, out) == (code, "") and words in err, err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shard mill", "--segments"),
        ("shard mill --segments 2", "expected A:B, such as 0:8, found '2'"),
        ("shard mill --segments 3:2", "expected A:B with A below B, found '3:2'"),
        ("shard --segments 0:1", "PACK"),
        (f"shard mill --segments 0:1 --token x --token-file '{__file__}'", "not both"),
        ("run --pack mill -p x --shards ''", "expected HOST:PORT,…, found ''"),
    ],
)
def test_wrong_usage(run: Kvarn, capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*shlex.split(line))
    assert words in capsys.readouterr().err
