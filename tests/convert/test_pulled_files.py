"""What a pull leaves on disk and what it takes from there: whole, checked, in its own folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from kvarn.convert.errors import HubError
from kvarn.convert.hub import PullResult, fetch, pull
from kvarn.system.errors import KvarnError

from .hub_server import LARGE, Hub, Repository, tiny_gguf

REPO = "org/tiny"
MODEL = "model-Q8_0.gguf"
FILES = {"README.md": b"# Tiny\n", MODEL: tiny_gguf(3 * LARGE)}
ALL = ("*",)


@pytest.fixture(autouse=True)
def cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub with a repository, as the one that the library asks; an empty cache for it."""
    hub.repositories[REPO] = Repository(dict(FILES))
    folder = tmp_path / "cache"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(fetch, "WAITS", (0.01,))
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def test_the_token_stays_with_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    pull(REPO)
    sent = {host: {token for h, token in hub.tokens if h == host} for host, _ in hub.tokens}
    assert sent == {hub.url: {"Bearer hf_good"}, hub.store_url: {""}}


def test_the_hub_is_asked_for_nothing_but_the_list_and_the_files(hub: Hub) -> None:
    # The library asks it for patterns to hold against the environment, and reports what matched.
    pull(REPO)
    assert [path for _, path, _ in hub.requests] == [
        f"/api/models/{REPO}/revision/main",
        f"/{REPO}/resolve/{'a' * 40}/{MODEL}",
        f"/cdn/{REPO}/{MODEL}",
    ]


def test_the_library_finds_what_was_pulled_and_the_other_way_round(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = pull(REPO, include=ALL)
    for name, data in FILES.items():
        by_library = hf_hub_download(REPO, name, cache_dir=cache, local_files_only=True)
        assert Path(by_library) == pulled.folder / name and Path(by_library).read_bytes() == data
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache) + "2")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE",
                        hub.url + "/{repo_id}/resolve/{revision}/{filename}")  # fmt: skip
    for name in FILES:
        hf_hub_download(REPO, name, cache_dir=f"{cache}2")
    n_sent = len(hub.sent)
    assert pull(REPO, include=ALL).folder == Path(f"{cache}2", *pulled.folder.parts[-3:])
    assert len(hub.sent) == n_sent


def test_large_files_are_asked_for_in_parts(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PART_BYTES", 2500)
    model = pull(REPO).model
    assert model is not None and model.read_bytes() == FILES[MODEL]
    assert hub.bodies(MODEL) == ["bytes=0-2499", "bytes=2500-4999", "bytes=5000-6143"]


@pytest.mark.parametrize(
    "data", [b"<html>" + bytes(LARGE), b"GGUF" + bytes(3 * LARGE), b"GGUF", b""]
)
def test_what_is_listed_rightly_and_is_no_model_is_refused(hub: Hub, data: bytes) -> None:
    hub.repositories[REPO].files[MODEL] = data
    with pytest.raises(HubError, match=r"is not a GGUF file|is not a model kvarn reads"):
        pull(REPO)


def test_a_file_that_fails_is_removed(hub: Hub, cache: Path) -> None:
    hub.repositories[REPO].files[MODEL] = b"<html>" + bytes(LARGE)
    with pytest.raises(HubError, match=r"is not kept: it is not a GGUF file"):
        pull(REPO)
    assert [path for path in cache.rglob("*") if not path.is_dir()] == []


def test_a_file_in_the_cache_that_is_another_stays_and_is_not_taken(
    cache: Path, offline: Callable[[], None]
) -> None:
    model = pull(REPO).model
    assert model is not None
    damaged = bytearray(FILES[MODEL])
    damaged[-1] ^= 1
    model.resolve().write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(HubError, match=r"another file than the model-Q8_0.gguf.*remove it"):
            pull(REPO)
        assert model.read_bytes() == damaged
        offline()


def test_a_removed_blob_comes_again(cache: Path) -> None:
    model = pull(REPO).model
    assert model is not None
    model.resolve().unlink()
    assert pull(REPO).model == model and model.read_bytes() == FILES[MODEL]


@pytest.mark.parametrize("online", [True, False])
def test_links_out_of_the_cache_are_not_followed(
    tmp_path: Path, offline: Callable[[], None], online: bool
) -> None:
    model = pull(REPO).model
    assert model is not None
    outside = tmp_path / MODEL
    outside.write_bytes(FILES[MODEL])
    model.unlink()
    model.symlink_to(outside)
    if not online:
        offline()
    with pytest.raises(HubError, match="not a file in"):
        pull(REPO)
    assert outside.read_bytes() == FILES[MODEL]


def test_a_dangling_link_is_not_written_through(tmp_path: Path, cache: Path) -> None:
    first = pull(REPO)
    assert first.model is not None
    blob = first.model.resolve()
    blob.unlink()
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KvarnError, match="a symbolic link"):
        pull(REPO)
    first.model.unlink()
    blob.unlink()
    first.model.symlink_to(tmp_path / "elsewhere")
    assert pull(REPO).model == first.model
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("part", ["blobs", "refs", "snapshots"])
def test_folders_that_are_links_are_refused(tmp_path: Path, cache: Path, part: str) -> None:
    (tmp_path / "outside").mkdir()
    root = cache / "models--org--tiny"
    root.mkdir(parents=True)
    (root / part).symlink_to(tmp_path / "outside")
    with pytest.raises(KvarnError, match="not a plain folder"):
        pull(REPO)
    assert list((tmp_path / "outside").iterdir()) == []


def into(folder: Path) -> PullResult:
    return pull(REPO, include=ALL, to=folder)


def test_a_folder_of_ones_own_loses_nothing(hub: Hub, tmp_path: Path) -> None:
    own_folder = tmp_path / "mine"
    own_folder.mkdir()
    (own_folder / "README.md").write_text("my own")
    with pytest.raises(HubError, match=r"README.md is another file than .*remove it"):
        into(own_folder)
    assert (own_folder / "README.md").read_text() == "my own"
    (own_folder / "README.md").unlink()
    into(own_folder)
    n_sent = len(hub.sent)
    assert into(own_folder).model == own_folder / MODEL
    assert len(hub.sent) == n_sent
    assert sorted(path.name for path in own_folder.iterdir()) == sorted(FILES)


def test_what_is_no_regular_file_in_a_folder_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket has to be short
    own_folder = tmp_path / "mine"
    own_folder.mkdir()
    target = own_folder / "README.md"
    with socket.socket(socket.AF_UNIX) as unix:
        kinds: tuple[Callable[[], None], ...] = (
            lambda: target.symlink_to(tmp_path / "elsewhere"),
            lambda: target.symlink_to("/dev/null"),
            lambda: os.mkfifo(target),
            lambda: unix.bind("mine/README.md"),
            target.mkdir,
        )
        for make in kinds:
            make()
            before = target.lstat()
            with pytest.raises(KvarnError):
                into(own_folder)
            assert os.path.samestat(before, target.lstat())
            target.rmdir() if target.is_dir() else target.unlink()
    assert not (tmp_path / "elsewhere").exists()


def test_folders_below_ones_own_that_are_links(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[REPO].files = {"sub/a.json": b"{}"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "mine" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(KvarnError, match="not a plain folder"):
        into(tmp_path / "mine")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_revision_that_a_failed_pull_was_of_is_not_known(
    hub: Hub, offline: Callable[[], None]
) -> None:
    old = pull(REPO)
    hub.repositories[REPO] = Repository({MODEL: b"<html>" + bytes(LARGE)}, commit="b" * 40)
    with pytest.raises(HubError):
        pull(REPO)
    offline()
    assert pull(REPO) == old


@pytest.mark.parametrize("ref", [b"../../..", b"a" * 39 + b"/", b"\xff" * 40, b"a" * 41, b""])
def test_a_ref_that_is_no_commit_counts_as_none(
    cache: Path, offline: Callable[[], None], ref: bytes
) -> None:
    pull(REPO)
    (cache / "models--org--tiny" / "refs" / "main").write_bytes(ref)
    offline()
    with pytest.raises(HubError, match="has not been pulled to this machine"):
        pull(REPO)


def test_an_index_of_another_shape_offline(hub: Hub, offline: Callable[[], None]) -> None:
    index = "model.safetensors.index.json"
    files = {"config.json": b"{}", "model.safetensors": b"x"}
    bodies = (b'{"weight_map": []}', b'{"weight_map": {"a": [1]}}', b"[]", b"[" * 9)
    for i, body in enumerate(bodies):
        hub.repositories[f"org/{i}"] = Repository({**files, index: body})
        pull(f"org/{i}")
    offline()
    for i in range(4):
        with pytest.raises(KvarnError, match=r"index\.json"):
            pull(f"org/{i}")
