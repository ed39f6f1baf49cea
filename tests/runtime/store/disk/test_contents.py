"""What is not a pack's own is neither followed, nor overwritten, nor removed."""

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.runtime.home import home, last_model, remember_model
from kvarn.runtime.packs.pack import all_packs, pack_info, remove_pack
from kvarn.runtime.store import Disk, PackError, StoreError
from kvarn.runtime.store.disk import files
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.contents import create, is_pack_file
from kvarn.runtime.store.disk.format import manifest, snapshot
from kvarn.runtime.store.disk.format.manifest import Manifest, Parent

from .packs import FACTS, fill, make, opened, random_tokens, save, write

TOKENS = random_tokens(1500)


@pytest.fixture
def full(pack: Path) -> Path:
    write(pack, TOKENS, column=False)
    return pack


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def forge(path: Path, change: Callable[[dict], object]) -> None:
    """A pack.json that says something else, with the right checksum where it can have one."""
    data = json.loads((path / "pack.json").read_text())
    change(data)
    data["check"] = manifest._check(data)
    (path / "pack.json").write_text(json.dumps(data))


def test_rm_takes_a_pack_and_its_folder(full: Path) -> None:
    for name in ("conversation.json", ".snapshot.0123456789abcdef.part"):
        (full / name).write_text("")
    assert remove_pack(full) == []
    assert not full.exists()


@pytest.mark.parametrize(
    "name", ["notes.txt", "tail-notes", "layer-1.kv", "index-A", "lock2", ".hidden", "pack.json~"]
)
def test_rm_leaves_files_of_others(full: Path, name: str) -> None:
    assert not is_pack_file(name)
    (full / name).write_text("mine")
    (full / "mine").mkdir()
    (full / "mine" / "tokens").write_text("mine")
    os.mkfifo(full / "snapshot")
    assert remove_pack(full) == sorted([name, "mine", "snapshot"])
    assert sorted(path.name for path in full.iterdir()) == sorted([name, "mine", "snapshot"])
    assert (full / "mine" / "tokens").read_text() == "mine"


def test_rm_does_not_follow_links(full: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (full / "tail-7").symlink_to(tmp_path / "mine")
    (tmp_path / "link").symlink_to(full)
    with pytest.raises(PackError, match="it is a link, nothing was removed"):
        remove_pack(tmp_path / "link")
    assert verify(full) == []
    remove_pack(full)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}', "[]"])
def test_rm_leaves_folders_that_are_no_packs(tmp_path: Path, content: str) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "pack.json").write_text(content)
    (tmp_path / "web" / "tokens").write_text("mine")
    with pytest.raises(PackError, match="nothing was removed"):
        remove_pack(tmp_path / "web")
    assert {path.name for path in (tmp_path / "web").iterdir()} == {"pack.json", "tokens"}


def test_a_writer_leaves_names_that_only_look_like_its_own(full: Path) -> None:
    (full / "tail-notes").write_text("mine")
    opened(full).close()
    assert (full / "tail-notes").read_text() == "mine"


@pytest.mark.parametrize("name", ["pack.json", "commits", "tokens", "lock", "layer-000.kv"])
@pytest.mark.parametrize("writable", [False, True])
def test_no_name_in_a_pack_is_followed(
    full: Path, tmp_path: Path, name: str, writable: bool
) -> None:
    if name == "lock" and not writable:
        pytest.skip("readers take no lock")
    (full / name).rename(tmp_path / "elsewhere") if (full / name).exists() else None
    if not (tmp_path / "elsewhere").exists():
        (tmp_path / "elsewhere").write_text("")
    before = (tmp_path / "elsewhere").read_bytes()
    (full / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises((PackError, OSError)):
        store = opened(full, writable)
        fill(store, TOKENS[:100], 0)
        save(store, TOKENS[:100])
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_what_is_replaced_goes_through_no_name_that_can_be_foretold(
    full: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    (full / "conversation.json.new").symlink_to(tmp_path / "mine")
    (full / "snapshot.new").symlink_to(tmp_path / "mine")
    files.replace(full / "conversation.json", b"{}")
    snapshot.write(full, snapshot.Snapshot([1], None, 1, {}, [memoryview(b"x")]))
    assert (tmp_path / "mine").read_text() == "mine"
    assert (full / "conversation.json").read_bytes() == b"{}"


def set_(*keys: str, to: object) -> Callable[[dict], object]:
    def change(data: dict) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to

    return change


def nested(depth: int) -> object:
    found: object = []
    for _ in range(depth):
        found = [found]
    return found


ODD: tuple[object, ...] = (
    None, True, 1.5, -1, 0, 1 << 70, "", "\ud800", "a\0b", "\x1b[2J\n", [], [1], {}, {"a": 1},
    nested(300),
)  # fmt: skip
PLACES = (
    ("format",), ("id",), ("model",), ("kv",), ("rope",), ("parent",), ("goal",), ("slots",),
    ("model", "name"), ("model", "fingerprint"), ("model", "path"), ("model", "tokenizer"),
    ("model", "n_layers"), ("model", "head_dim"), ("kv", "k"), ("kv", "segment"), ("rope", "long"),
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_hostile_manifest_is_one_error_or_a_pack(full: Path, place: tuple[str, ...]) -> None:
    whole = (full / "pack.json").read_bytes()
    for odd in ODD:
        (full / "pack.json").write_bytes(whole)
        forge(full, set_(*place, to=odd))
        for use in (pack_info, verify, opened):
            try:
                use(full)
            except (PackError, StoreError) as error:
                assert "\n" not in str(error)
                str(error).encode()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000, '{"a":' * 10_000, '{"format": ' + "9" * 5000 + "}", "\ufeff{}", "nul",
        '{"format": 1e999, "check": NaN}', '{"id": "' + "x" * 70_000 + '"}', '"\\ud800"',
    ],
)  # fmt: skip
def test_a_pack_json_of_any_text_is_one_error(full: Path, text: str) -> None:
    (full / "pack.json").write_text(text)
    with pytest.raises(PackError, match=r"pack\.json"):
        pack_info(full)


@pytest.mark.parametrize(
    "path", [".", "../pack", "/dev/null", "/", "a\0b", "\ud800", "", "x" * 5000]
)
def test_a_parent_anywhere_is_one_error(full: Path, path: str) -> None:
    """Itself included: parents that go round end after sixteen."""
    above = Parent(path, Manifest.read(full).id, 1, 0, "")
    facts = replace(Manifest.read(full), parent=above)
    (full / "pack.json").write_bytes(facts.encode())
    with pytest.raises(PackError, match="its parent") as caught:
        pack_info(full)
    assert len(str(caught.value)) < 500 + 2 * len(path)
    with pytest.raises(PackError):
        opened(full)


@pytest.mark.parametrize("kind", ["name", "text", "link", "folder", "pipe", "loop"])
def test_a_bad_pack_does_not_hide_the_others(at_home: Path, kind: str) -> None:
    from kvarn.cli import main

    for name in ("a", "b"):
        create(at_home / "packs" / name, Manifest(FACTS, "f16", "f16", False))
    bad = at_home / "packs" / "a"
    if kind == "name":
        forge(bad, set_("model", "name", to="\ud800\x1b[2J"))
    elif kind == "text":
        (bad / "pack.json").write_text("[" * 9000)
    else:
        (bad / "commits").unlink()
        {
            "link": lambda: (bad / "commits").symlink_to("/dev/zero"),
            "folder": (bad / "commits").mkdir,
            "pipe": lambda: os.mkfifo(bad / "commits"),
            "loop": lambda: (bad / "commits").symlink_to("commits"),
        }[kind]()
    assert [path.name for path in all_packs()] == ["a", "b"]
    assert main(["pack", "ls"]) == 0
    assert pack_info(at_home / "packs" / "b").n_tokens == 0


def modes(folder: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


def test_what_is_at_home_is_the_users_alone(at_home: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        for path in (at_home / "packs" / "book", tmp_path / "book"):
            make(path)
            write(path, TOKENS, column=False)
            files.replace(path / "conversation.json", b"{}")
        remember_model(tmp_path / "model.gguf", "converted")
    finally:
        os.umask(old)
    assert stat.S_IMODE(at_home.stat().st_mode) == 0o700
    assert modes(at_home) == {"0o600", "0o700"}
    assert stat.S_IMODE((tmp_path / "book").stat().st_mode) == 0o777
    assert modes(tmp_path / "book") == {"0o666"}
    assert last_model() == tmp_path / "model.gguf"


def test_a_home_that_is_there_keeps_its_modes(at_home: Path) -> None:
    (at_home / "packs").mkdir(parents=True)
    at_home.chmod(0o755)
    (at_home / "packs").chmod(0o750)
    make(at_home / "packs" / "book")
    assert stat.S_IMODE(home().stat().st_mode) == 0o755
    assert stat.S_IMODE((at_home / "packs").stat().st_mode) == 0o750
    assert stat.S_IMODE((at_home / "packs" / "book").stat().st_mode) == 0o700


def test_last_json_is_not_written_through_a_link(at_home: Path, tmp_path: Path) -> None:
    at_home.mkdir()
    (tmp_path / "mine").write_text("mine")
    (at_home / f"last.json.{os.getpid()}").symlink_to(tmp_path / "mine")
    remember_model(tmp_path / "model.gguf", "converted")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader")
    with pytest.raises(PackError, match=r"it holds letter\.txt"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("call", ["open_file", "write_at", "sync", "sync_folder", "replace"])
@pytest.mark.parametrize("there", [False, True])
def test_a_pack_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, there: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if there:
        (tmp_path / "a" / "pack").mkdir(parents=True)
    monkeypatch.setattr(files, call, fail)
    with pytest.raises(OSError, match="No space"):
        make(tmp_path / "a" / "pack")
    assert [p.name for p in tmp_path.rglob("*")] == (["a", "pack"] if there else [])


@pytest.mark.parametrize("path", ["a\0b", "\ud800", ""])
def test_what_is_no_path_is_one_error(path: str) -> None:
    with pytest.raises(PackError, match="is not a path that a pack can have"):
        Disk(path)


@pytest.mark.parametrize("options", [{"k": "q9"}, {"v": "q9"}, {"k": "f16", "v": ""}])
def test_unknown_types_are_refused_at_once(options: dict[str, str]) -> None:
    with pytest.raises(StoreError, match=r"unknown type .* use one of f16, q8_0, q4_0"):
        Disk("somewhere", **options)  # type: ignore[arg-type]
