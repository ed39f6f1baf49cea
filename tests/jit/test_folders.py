"""Where kernels are kept: in which folder, in which of two, and what is removed there."""

import os
import pwd
import time

import pytest

from kvarn.jit import kernel_cache, roots
from kvarn.jit.kernel_cache import folders
from kvarn.ops import diagnostics
from kvarn.system import trust


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_full_disk(places, monkeypatch, tmp_path, capsys):
    def full(folder, name, *parts):
        if folder.path.is_relative_to(tmp_path / "home"):
            raise OSError(28, "No space left on device", name)
        write(folder, name, *parts)

    write = trust.Folder.write
    monkeypatch.setattr(trust.Folder, "write", full)
    _, second = places(tmp_path / "home", tmp_path / "tmp")
    for name in ("a.kernel", "b.kernel"):
        kernel_cache.keep(name, b"x")
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and "No space left" in output and "KVARN_CACHE" in output
    assert _names(second) == ["a.kernel", "b.kernel"]
    assert kernel_cache.find("a.kernel", bytes) == b"x" and kernel_cache.place() == second


def test_without_any_folder_kernels_are_not_kept(places, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    places(blocked / "a", blocked / "b")
    kernel_cache.keep("a.kernel", b"x")
    kernel_cache.keep("b.kernel", b"x")
    assert capsys.readouterr().err.count("cannot keep") == 1
    assert kernel_cache.place() is None


def test_a_user_without_a_home_folder_keeps_none_and_is_told_how(places, monkeypatch, capsys):
    candidates = roots.candidates
    for name in ("KVARN_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(_):
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    places()
    monkeypatch.setattr(roots, "candidates", candidates)
    assert kernel_cache.find("a.kernel", bytes) is None
    assert capsys.readouterr().err == ""  # nothing to keep so far
    kernel_cache.keep("a.kernel", b"x")
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and "no home folder" in output and "set KVARN_CACHE" in output
    assert diagnostics.cache()["not_usable"][0]["what"] in output


@pytest.mark.parametrize(
    ("chosen", "where"),
    [
        ("relative/{}", "cwd/relative/{}"),
        ("{}/../kept", "cwd/kept"),
        ("../{}/..//./kept", "kept"),
        ("~/kept", "home/kept"),
    ],
)
def test_a_chosen_folder_is_found_however_it_is_written(
    monkeypatch, tmp_path, places, chosen, where
):
    for name in ("cwd", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVARN_CACHE", chosen.format("x y"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    root, *_ = roots.candidates()
    places(root)
    kernel_cache.keep("a.kernel", b"x")
    assert (
        kernel_cache.place() == tmp_path.resolve() / where.format("x y") / "kernels" / folders.key()
    )
    assert kernel_cache.find("a.kernel", bytes) == b"x"
    assert not (tmp_path / "xdg").exists()


@pytest.mark.parametrize(
    "chosen", ["/a\0b", "~no_such_user/x", "/dev/null/x", "\033[2J/" + "x" * 300]
)
def test_a_chosen_folder_that_cannot_be_is_one_line(monkeypatch, places, tmp_path, capsys, chosen):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**os.environ, "KVARN_CACHE": chosen})
    root, *_ = roots.candidates()
    places(root)
    kernel_cache.keep("a.kernel", b"x")
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and output[:-1].isprintable() and "KVARN_CACHE" in output
    assert kernel_cache.find("a.kernel", bytes) is None
    assert diagnostics.cache()["folder"] is None


def test_kernels_built_ahead_by_root_are_read_and_ones_own_kept_at_home(
    places, monkeypatch, tmp_path, capsys
):
    built, home = places(tmp_path / "built", tmp_path / "own")
    kernel_cache.keep("ahead.kernel", b"1")
    places(tmp_path / "built", tmp_path / "own")
    is_writable = trust.Folder.is_writable
    monkeypatch.setattr(
        trust.Folder, "is_writable", lambda folder: folder.path != built and is_writable(folder)
    )
    assert kernel_cache.find("ahead.kernel", bytes) == b"1"
    assert capsys.readouterr().err == ""
    kernel_cache.keep("own.kernel", b"2")
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and str(built) in output and str(home) in output
    assert kernel_cache.find("own.kernel", bytes) == b"2" and _names(home) == ["own.kernel"]


def test_a_file_of_another_name_or_machine_counts_as_absent(places, monkeypatch, tmp_path):
    (folder,) = places(tmp_path)
    kernel_cache.keep("a.kernel", b"x")
    (folder / "a.kernel").rename(folder / "b.kernel")
    assert kernel_cache.find("b.kernel", bytes) is None
    (folder / "b.kernel").rename(folder / "a.kernel")
    assert kernel_cache.find("a.kernel", bytes) == b"x"
    monkeypatch.setattr(folders, "key", lambda: "another")
    assert kernel_cache.find("a.kernel", bytes) is None


def test_roots_in_order(monkeypatch, tmp_path):
    monkeypatch.delenv("KVARN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says: ignore it
    monkeypatch.setenv("HOME", str(tmp_path))
    assert roots.candidates()[0] == tmp_path / ".cache" / "kvarn"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert roots.candidates()[0] == tmp_path / "xdg" / "kvarn"
    monkeypatch.setenv("KVARN_CACHE", str(tmp_path / "chosen"))
    assert roots.candidates()[0] == tmp_path / "chosen"
    assert all(root.is_absolute() for root in roots.candidates())


def _key(i):
    return f"avx2-{i:024x}"


def _opened(kernels):
    return trust.open_folder(kernels / folders.key(), make=True)


def test_pruning_keeps_this_key_and_the_newest(tmp_path):
    for i in range(5):
        (tmp_path / _key(i)).mkdir()
        os.utime(tmp_path / _key(i), (time.time() - 100 * i,) * 2)
    (tmp_path / folders.key()).mkdir()
    os.utime(tmp_path / folders.key(), (0, 0))
    folders.prune(_opened(tmp_path), keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {_key(0), _key(1), folders.key()}


def test_pruning_removes_nothing_that_kvarn_did_not_make(tmp_path):
    """Strangers' folders, files, links and what links point to stay; kvarn's own files go."""
    kernels = tmp_path / "kernels"
    digest = "0123456789" * 4
    ours = ["kvarn_launch.code", "keys-0123456789abcdef.means"]
    ours += [
        f"{name}-{digest}.{kind}"
        for name in ("<lambda>", "a-b")
        for kind in ("kernel", "code", "names", "digests", "means")
    ]
    ours += [f"{name}.0123456789abcdef.tmp" for name in (*ours, "probe")]
    strangers = ["notes.txt", "a.kernel", f"{digest}.code", f"x-{digest}.kernel.part", ".hidden"]
    for folder in ("notes", "avx2", "avx2-0", f"sse-{1:024x}", f"{_key(1)}x", _key(2), _key(3)):
        (kernels / folder).mkdir(parents=True)
        for name in ours:
            (kernels / folder / name).write_text("")
    for name in strangers:
        (kernels / _key(2) / name).write_text("")
    (kernels / _key(2) / f"f-{digest}.code").mkdir()
    (kernels / _key(2) / f"l-{digest}.code").symlink_to(kernels / "notes" / ours[0])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ours[0]).write_text("")
    (kernels / _key(4)).symlink_to(outside)
    (kernels / _key(5)).write_text("a file")
    folders.prune(_opened(kernels), keep=0)
    left = ["notes", "avx2", "avx2-0", f"sse-{1:024x}", f"{_key(1)}x", *map(_key, (2, 4, 5))]
    assert _names(kernels) == sorted([*left, folders.key()])
    assert _names(kernels / _key(2)) == sorted([*strangers, f"f-{digest}.code"])
    assert _names(kernels / "notes") == sorted(ours)
    assert _names(outside) == [ours[0]]


def test_what_was_used_longest_ago_goes_where_the_folder_grows_too_large(tmp_path):
    """Used is what was read or written; strangers' files, links and folders stay."""
    digest = "0123456789" * 4
    with trust.open_folder(tmp_path / "kernels", make=True) as folder:
        # Name → days since it was read, and since it was written.
        for name, read, written in (("a", 5, 5), ("b", 0, 9), ("c", 3, 2), ("d", 1, 1)):
            folder.write(f"{name}-{digest}.code", bytes(100))
            times = (time.time() - 86_400 * read, time.time() - 86_400 * written)
            os.utime(folder.path / f"{name}-{digest}.code", times)
        (folder.path / "notes.txt").write_bytes(bytes(1000))
        os.utime(folder.path / "notes.txt", (0, 0))
        (folder.path / f"l-{digest}.code").symlink_to("notes.txt")
        for most, left in ((400, "abcd"), (399, "bcd"), (200, "bd"), (0, "")):
            folders.prune(folder, most_bytes=most + 9)  # of the link's own size
            names = [f"{name}-{digest}.code" for name in (*left, "l")]
            assert _names(folder.path) == [*names, "notes.txt"]


def test_the_hash_changes_with_any_source(tmp_path):
    def seen():
        return folders.hash_of(folders.read_sources([tmp_path]))

    (tmp_path / "a.py").write_text("1")
    (tmp_path / "sub").mkdir()
    hashes = {seen()}
    (tmp_path / "sub" / "b.py").write_text("2")
    hashes.add(seen())
    (tmp_path / "sub" / "b.py").write_text("3")
    hashes.add(seen())
    (tmp_path / "sub" / "b.py").rename(tmp_path / "c.py")
    hashes.add(seen())
    assert len(hashes) == 4
