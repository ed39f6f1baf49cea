"""What does not fit is refused in a line that names the shard, which outlives what it refuses."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend, AttendError
from kvarn.runtime.packs.pack import build_pack, index_pack
from kvarn.runtime.shards import ShardError, greeting, links
from kvarn.runtime.shards.frames import Kind, Message, receive, send, text_array, text_of
from kvarn.runtime.shards.greeting import PROTOCOL, greet
from kvarn.runtime.store import PackError
from kvarn.system.errors import KvarnError

from ..reading import SHAPE, ids_of
from .processes import opened, over, shards

N = 3100


@contextmanager
def answering(*parts: bytes) -> Iterator[str]:
    """The address of something that is no shard: it sends this and closes."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            for part in parts:
                connection.sendall(part)
            with suppress(OSError):
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def frame(kind: Kind, data: dict) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, kind, [text_array(json.dumps(data))])
        return theirs.recv(1 << 16)


def test_ranges_that_overlap_or_leave_gaps(model: kvarn.Model, pack: Path) -> None:
    with shards(pack, (0, 2), (1, 3), (3, 5)) as processes:
        first, second, third = (one.address for one in processes)
        for addresses, at_fault, words in (
            ([first, second], second, "tokens from 1,024 on.* end at 2,048: they overlap"),
            ([first, first], first, "they overlap"),
            ([first, third], third, "tokens from 3,072 on.* end at 2,048: nobody holds"),
            ([second], second, "where the context begins at 0: nobody holds"),
        ):
            with pytest.raises(ShardError, match=f"shard {at_fault}: it.*{words}") as caught:
                opened(model, pack, over(addresses))
            assert "\n" not in str(caught.value)


def test_another_pack_and_another_type_of_kv(
    model: kvarn.Model, pack: Path, tmp_path: Path
) -> None:
    ids = ids_of(model, N)
    build_pack(model, tmp_path / "other", ids, N)
    build_pack(model, kvarn.Disk(tmp_path / "q8", "q8_0", "q8_0"), ids, N)
    with shards(pack, (0, 2)) as (shard,):
        for name, words in (("other", "another pack"), ("q8", "f16/f16, those of .* q8_0/q8_0")):
            with pytest.raises(ShardError, match=f"shard {shard.address}: it.*{words}"):
                opened(model, tmp_path / name, over([shard.address]))


def test_a_pack_that_was_changed_after_it_was_copied(
    model: kvarn.Model, pack: Path, tmp_path: Path
) -> None:
    import shutil

    copied = tmp_path / "copied"
    shutil.copytree(pack, copied)
    with model.context(8192, store=kvarn.Disk(copied)) as context:
        context.truncate(1500)
        context.prefill(ids_of(model, N, seed=5))
    refused = pytest.raises(ShardError, match=r"another pack than .* or other tokens")
    with shards(copied, (0, 2)) as (shard,), refused:
        opened(model, pack, over([shard.address]))


def test_a_token_that_is_wrong_or_missing(model: kvarn.Model, pack: Path) -> None:
    with shards(pack, (0, 2), options=("--token", "secret")) as (shard,):
        for token in ("", "wrong"):
            with pytest.raises(ShardError, match=f"{shard.address}: the token is wrong, or miss"):
                opened(model, pack, over([shard.address], token=token))
        opened(model, pack, over([shard.address], token="secret")).close()
        said = shard.close()
    assert "refused 127.0.0.1: the token is wrong" in said and "secret" not in said
    with shards(pack, (0, 2)) as (shard,), pytest.raises(ShardError, match="token is wrong"):
        opened(model, pack, over([shard.address], token="secret"))


def test_a_shard_that_does_not_know_the_token_is_not_believed(
    model: kvarn.Model, pack: Path
) -> None:
    hello = {"kvarn": kvarn.__version__, "protocol": PROTOCOL, "nonce": "n"}
    facts = {"pack": "p", "digest": "d", "kv": "f16/f16", "first": 0, "stop": 2048, "columns": []}
    said = frame(Kind.HELLO, hello), frame(Kind.FACTS, {**facts, "proof": "0"})
    refused = pytest.raises(ShardError, match="it does not know the token")
    with answering(*said) as address, refused:
        opened(model, pack, over([address], token="secret"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the protocol"),
        (frame(Kind.ANSWER, {}), "does not greet"),
        (frame(Kind.HELLO, {"kvarn": "0.1", "protocol": 1}), r"kvarn 0\.1, protocol 1, this one"),
        (frame(Kind.HELLO, {"kvarn": kvarn.__version__, "protocol": 9}), "protocol 9, this one"),
        (frame(Kind.ERROR, {"x": "\x1b[31m"}), "x"),
    ],
)
def test_what_is_no_shard_of_this_version(
    model: kvarn.Model, pack: Path, said: bytes, words: str
) -> None:
    refused = pytest.raises(ShardError, match=words)
    with answering(said) as address, refused as caught:
        opened(model, pack, over([address]))
    assert str(caught.value).startswith(f"shard {address}: ")
    assert str(caught.value).isprintable()


def test_who_says_nothing(model: kvarn.Model, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "SECONDS", 0.1)
    with answering() as address, pytest.raises(ShardError, match=f"{address}: cannot be reached"):
        opened(model, pack, over([address]))


def test_a_shard_of_another_version_says_so(pack: Path) -> None:
    with shards(pack, (0, 2)) as (shard,):
        with socket.create_connection(("127.0.0.1", shard.port)) as connection:
            receive(connection)
            connection.sendall(frame(Kind.PROOF, {"kvarn": "0.1", "protocol": 0}))
            answer = receive(connection)
        assert answer.kind is Kind.ERROR and "kvarn 0.1, protocol 0" in text_of(answer.arrays[0])


def test_nobody_there(model: kvarn.Model, pack: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ShardError, match=f"127.0.0.1:{port}: cannot be reached"):
        opened(model, pack, over([f"127.0.0.1:{port}"]))


@pytest.mark.parametrize(
    "address", ["here", "a:b", "a:99999", ":1", "u@a:1", "a:1/x", "", "a..b:1", "\udcff:1"]
)
def test_words_that_are_no_address(address: str) -> None:
    with pytest.raises(KvarnError, match="expected HOST:PORT"):
        kvarn.Shards([address])


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (kvarn.TopK(), "index sketch"),
        (kvarn.Hash(rerank=2), "serve rerank"),
        (kvarn.Hash(tail="means"), "tail means"),
        (kvarn.MagicPig(), "attend magicpig"),
        (kvarn.Auto(), "attend auto"),
        (kvarn.Hash(probe=1), "serve probe"),
    ],
)
def test_methods_that_shards_do_not_serve(method: Attend, words: str) -> None:
    with pytest.raises(AttendError, match=words):
        over(["127.0.0.1:1"], method)


def test_contexts_that_do_not_follow_a_pack(model: kvarn.Model, pack: Path) -> None:
    with pytest.raises(AttendError, match="continues after their pack"):
        model.context(8192, over(["127.0.0.1:1"]))
    with shards(pack, (0, 5)) as (shard,):
        with opened(model, pack, over([shard.address])) as context:
            context.truncate(3000)
            with pytest.raises(ShardError, match=r"holds tokens up to 5,120, .* cut to 3,000"):
                context.decode(1)
        with pytest.raises(KvarnError, match="prefill sparse cannot be combined"):
            store = kvarn.Disk(pack, read_only=True)
            attend = over([shard.address], kvarn.Hash())
            model.context(9000, attend, store=store, prefill=kvarn.SparsePrefill())


@pytest.mark.parametrize(
    ("method", "name"), [(kvarn.Hash(), "simhash"), (kvarn.TopK(), "sketch-.*-c2")]
)
def test_an_index_that_the_pack_of_a_shard_has_not(
    model: kvarn.Model, tmp_path: Path, method: Attend, name: str
) -> None:
    """Also where it has that of another method; once made, nothing is missing."""
    path, other = tmp_path / "pack", {"hash": kvarn.TopK(), "topk": kvarn.Hash()}
    build_pack(model, path, ids_of(model, N), N)
    index_pack(model, path, other[method.name])
    words = f"its pack has no index {name}.*: `kvarn pack index NAME --method {method.name}` makes"
    with shards(path, (0, 2)) as (shard,), pytest.raises(ShardError, match=words):
        opened(model, path, over([shard.address], method, choice="each"))
    index_pack(model, path, method)
    with shards(path, (0, 2)) as (shard,):
        opened(model, path, over([shard.address], method, choice="each")).close()


def test_segments_that_a_pack_has_not(pack: Path, tmp_path: Path, model: kvarn.Model) -> None:
    from kvarn.runtime.shards.shard import Shard

    for first, stop, found in ((0, 6, "0:6"), (5, None, "5:"), (2, 2, "2:2"), (3, 1, "3:1")):
        words = rf"has 5 full segments of 1,024 tokens \(0:5\), found --segments {found}$"
        with pytest.raises(PackError, match=words):
            Shard(pack, first, stop)
    build_pack(model, tmp_path / "short", ids_of(model, 737), 737)
    with pytest.raises(PackError, match="has 737 tokens, fewer than a segment of 1,024"):
        Shard(tmp_path / "short")
    evicting = kvarn.Streaming(budget=200)
    with model.context(512, keep=evicting, store=kvarn.Disk(tmp_path / "few")) as context:
        context.prefill([1, 2, 3])
    with pytest.raises(PackError, match="keeps some tokens only"):
        Shard(tmp_path / "few")


def _questions() -> list[tuple[Kind, list[np.ndarray]]]:
    """Questions that cannot be answered: of other sizes, types, layers and tokens."""
    q = np.zeros((1, SHAPE.n_heads, SHAPE.head_dim), np.float32)
    plain, zero, choice = np.array([0, 1, 0], np.float64), np.array([0]), np.array([1024, 2048, 5])
    limits = np.zeros(SHAPE.n_heads, np.uint64)
    signatures = np.zeros((SHAPE.n_kv_heads, 2), np.uint64)
    name, none = text_array("simhash-32-20240517"), limits[:0]
    return [
        (Kind.ROWS, []),
        (Kind.ROWS, [plain, q, q]),
        (Kind.ROWS, [plain, q[:, :3]]),
        (Kind.ROWS, [plain, q.astype(np.float64)]),
        (Kind.ROWS, [plain, np.tile(q, (65, 1, 1))]),
        (Kind.ROWS, [plain, q[0]]),
        (Kind.ROWS, [plain[:2], q]),
        (Kind.ROWS, [np.array([7, 1, 0], np.float64), q]),
        (Kind.ROWS, [np.array([0.5, 1, 0], np.float64), q]),
        (Kind.ROWS, [np.array([np.nan, 1, 0], np.float64), q]),
        (Kind.ROWS, [np.array([0, np.inf, 0], np.float64), q]),
        (Kind.LARGEST, [zero, np.array([0, 2048, 5]), q]),
        (Kind.LARGEST, [zero, np.array([1024, 4096, 5]), q]),
        (Kind.LARGEST, [zero, np.array([2048, 2048, 5]), q]),
        (Kind.LARGEST, [zero, np.array([2048, 2048, 0]), q]),
        (Kind.LARGEST, [zero, np.array([1024, 2048, 0]), q]),
        (Kind.LARGEST, [zero, np.array([1024, 2048, 1025]), q]),
        (Kind.LARGEST, [zero, choice.astype(np.uint64), q]),
        (Kind.LARGEST, [zero, choice[:2], choice[:0].astype(np.float32)]),
        (Kind.LARGEST, [plain[:1], choice, q]),
        (Kind.NEAREST, [zero, choice, signatures, text_array("none")]),
        (Kind.NEAREST, [zero, choice, signatures[:1], name]),
        (Kind.NEAREST, [zero, choice, signatures.astype(np.int64), name]),
        (Kind.NEAREST, [zero, choice, signatures, signatures[0]]),
        (Kind.CHOSEN, [plain, choice, q, none, signatures, name[:3]]),
        (Kind.CHOSEN, [plain, choice, q, none, signatures.T.copy()[:1], name]),
        (Kind.CHOSEN, [plain, choice, q, limits, signatures[:, :1].copy(), name]),
        (Kind.CHOSEN, [plain, choice - 2000, q, limits, signatures, name]),
        (Kind.CHOSEN, [plain, np.array([0, *choice]), q, limits, signatures, name]),
        (Kind.CHOSEN, [plain, choice, q, limits[1:], signatures, name]),
        (Kind.CHOSEN, [plain, choice, q, limits.astype(np.int64), signatures, name]),
        (Kind.SKETCHED, [plain, choice, q, name]),
        (Kind.SKETCHED, [plain, choice, q[:, :3]]),
        (Kind.SKETCHED, [np.array([7, 1, 0], np.float64), choice, q]),
        (Kind.HELLO, []),
        (Kind.ANSWER, [q]),
    ]


def test_questions_that_cannot_be_answered(pack: Path) -> None:
    q = np.zeros((1, SHAPE.n_heads, SHAPE.head_dim), np.float32)
    sound = Kind.ROWS, [np.array([0, 1, 0], np.float64), q]
    with shards(pack, (1, 3)) as (shard,):
        for kind, arrays in _questions():
            with socket.create_connection(("127.0.0.1", shard.port)) as connection:
                greet(connection, "")
                send(connection, *sound)
                assert receive(connection).kind is Kind.ANSWER
                send(connection, kind, arrays)
                answer: Message = receive(connection)
                assert answer.kind is Kind.ERROR, (kind, arrays)
                assert text_of(answer.arrays[0]).isprintable()
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"kvsh\x06\x01\0\0\xff\xff\xff\xff"):
            with socket.create_connection(("127.0.0.1", shard.port)) as connection:
                greet(connection, "")
                connection.sendall(junk)
                connection.settimeout(20)
                with suppress(ConnectionResetError):
                    assert not connection.recv(1)
        assert links.Link(shard.address, "").facts.first == 1024
        said = shard.close()
    assert "Traceback" not in said
