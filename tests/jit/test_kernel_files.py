"""Files of kernels: named by what was compiled, and read only if nobody else wrote them."""

import hashlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvarn.jit import cached, kernel_cache
from kvarn.jit.kernel_cache import emit, files, folders
from kvarn.jit.launch.lazy import DefinedKernel, LazyKernel


def _double(k):
    @cached.jit
    def double(x):
        return x * 2 + k

    return double


def _kernel(k, other):
    @cached.jit
    def kernel(x):
        return other(x) * k

    return kernel


def _of_name(name, payload):
    """The bytes of a file of this name, whose checksum is right."""
    return hashlib.sha256(f"{folders.key()}/{name}\0".encode() + payload).digest() + payload


class _Evil:
    """Makes a folder when its pickle is read."""

    def __init__(self, ran):
        self.ran = ran

    def __reduce__(self):
        return os.mkdir, (str(self.ran),)


@pytest.mark.parametrize("how", ["leaf", "parent", "link", "owner", "file"])
def test_what_others_can_have_written_is_never_run(places, tmp_path, capsys, how):
    if how in ("owner", "file") and os.geteuid() != 0:
        pytest.skip("needs root, to make what others own")
    roots = [tmp_path / "cache", tmp_path / "home"]
    leaf, home = places(*roots)
    assert _double(7)(1) == 9
    (file,) = leaf.iterdir()
    evil = _of_name(file.name, pickle.dumps(_Evil(tmp_path / "ran")))
    file.write_bytes(evil)
    loose = leaf
    if how == "leaf":
        leaf.chmod(0o2775)
    elif how == "parent":
        loose = roots[0]
        loose.chmod(0o770)
    elif how == "link":
        leaf.chmod(0o775)
        (tmp_path / "link").symlink_to(roots[0])
        roots[0] = tmp_path / "link"
    elif how == "owner":
        os.chown(leaf, 54_321, -1)
    else:
        loose = file
        os.chown(file, 54_321, -1)
        file.chmod(0o600)
    places(*roots)
    assert _double(7)(1) == 9
    output = capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and file.read_bytes() == evil
    assert output.count("\n") == 1 and str(loose) in output
    assert home.exists() == (how != "file")  # one bad file is no reason to leave a good folder
    # Who trusts it runs it: the test can fail.
    for path, mode in ((roots[0].resolve(), 0o755), (leaf, 0o755), (file, 0o644)):
        os.chown(path, os.geteuid(), -1)
        path.chmod(mode)
    places(*roots)
    assert _double(7)(1) == 9
    assert (tmp_path / "ran").exists()


class _Fails:
    def __reduce__(self):
        return int, ("no number",)


WRONG = [
    *(b"", b"\x80", b"no pickle", b"\x80\x04N.", pickle.dumps(_Fails())),
    *(pickle.dumps(other) for other in (5, (), ((), ()), (("a",), (1, 2)), (None, None), {1: 2})),
]


@pytest.mark.parametrize("i", range(len(WRONG) + 1))
def test_wrong_content_under_a_right_checksum_is_compiled_anew(places, tmp_path, i):
    (folder,) = places(tmp_path)
    assert _double(7)(1) == 9
    (file,) = folder.iterdir()
    wrong = [*WRONG, file.read_bytes()[32:-100]][i]
    file.write_bytes(_of_name(file.name, wrong))
    for compiled in (1, 0):  # the second time it was replaced
        before = kernel_cache.Counts.compiled
        assert _double(7)(1) == 9
        assert kernel_cache.Counts.compiled - before == compiled


def test_kernels_of_changed_sources_are_not_kept(places, tmp_path, monkeypatch, capsys):
    places(tmp_path)
    written = []
    monkeypatch.setattr(files._folders, "write", lambda name, payload: written.append(name))
    monkeypatch.setattr(folders, "sources_hash", lambda: "edited since")
    assert _double(5)(1) == 7
    assert written == []
    assert "kvarn's sources have changed since this process began" in capsys.readouterr().err
    monkeypatch.setattr(folders, "sources_hash", lambda: folders.SOURCES)
    assert _double(6)(1) == 8
    assert len(written) == 1


def test_kernels_of_unnameable_things_are_refused():
    lock = type("Lock", (), {"__slots__": ()})()
    with pytest.raises(TypeError, match="not the same in the next process"):
        _kernel(1, lock)


def test_kernels_of_one_factory_have_files_of_their_own(monkeypatch):
    double, other = _double(0), _double(1)
    names = {
        _kernel(k, helper)._cache.file_name("signature", ())
        for k in (1, 2, 2.0, "2", (2,), True)
        for helper in (double, other)
    }
    assert len(names) == 12
    again = _kernel(1, double)._cache.file_name("signature", ())
    assert again in names
    assert again != _kernel(1, double)._cache.file_name("another", ())
    # A kernel from a file outside ops/ changes its name with the file.
    monkeypatch.setattr(cached, "_outside_source", lambda function: "edited")
    assert again != _kernel(1, double)._cache.file_name("signature", ())
    assert Path(again).suffix == ".kernel"


@cached.jit
def _even(n):
    return n == 0 or _odd(n - 1)


@cached.jit
def _odd(n):
    return n != 0 and _even(n - 1)


def test_kernels_that_call_each_other_have_names():
    names = {kernel._cache.file_name("signature", ()) for kernel in (_even, _odd)}
    assert len(names) == 2


class Plain(DefinedKernel):
    """A kernel that does nothing."""

    address, kinds, traits = 0, "", ()

    def code(self, symbol):
        text = f"define i64 @{symbol}(i64 %a, i64 %b, i64 %c) {{ ret i64 %a }}"
        return emit.compile_text(text, symbol)


def test_processes_that_need_a_kernel_at_once_compile_it_once(places, tmp_path, monkeypatch):
    places(tmp_path)
    kernel = LazyKernel(Plain)
    with ThreadPoolExecutor() as others, kernel_cache.claim(kernel._name):
        waiting = others.submit(lambda: LazyKernel(Plain).address)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.1)
        kernel._compile(kernel._name)
        monkeypatch.setattr(LazyKernel, "_compile", lambda *_: pytest.fail("compiled again"))
    assert waiting.result() and not list(tmp_path.rglob("*.lock"))
