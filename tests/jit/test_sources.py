"""What a kernel is made of: an edit of that compiles it again, and no other edit does."""

import ast
import gc
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import kvarn
from kvarn.jit.kernel_cache import files, folders, sources

ROOT = Path(kvarn.__file__).resolve().parent

TOY = {
    "jit/launch/define.py": "from . import lazy, record\n",
    "jit/launch/lazy.py": "LAZY = 1\n",
    "jit/launch/record.py": "RECORD = 1\n",
    "ops/__init__.py": "from .stranger import STRANGER\n",
    "ops/api.py": """
from typing import TYPE_CHECKING
from .stranger import STRANGER
from ..jit.launch import lazy_kernel
from ..jit.launch import define
LIMIT = 5
@lazy_kernel
def _named():
    from .kernels import kernel
    return kernel
@lazy_kernel
def _chosen():
    from .kernels import kernel, other
    return kernel if LIMIT else other
@lazy_kernel
def _default(limit=LIMIT):
    from .kernels import kernel
    return kernel
def wrapper():
    return _named()
""",
    "ops/kernels.py": '"""Kernels."""\nfrom ..jit.launch.define import x\nfrom .near import y\n',
    "ops/near/__init__.py": "from ..middle import y as y\n",
    "ops/near/beside.py": "BESIDE = 1\n",
    "ops/names/__init__.py": "from .made import taken\n",
    "ops/names/taken.py": "TAKEN = 1\n",
    "ops/names/made.py": "taken = 1\n",
    "ops/middle.py": """
from typing import TYPE_CHECKING
from . import module
from .names import taken
if TYPE_CHECKING:
    from .annotated import A
def y():
    from .far import CONSTANT
    return CONSTANT
""",
    "ops/module.py": "MODULE = 1\n",
    "ops/annotated.py": "A = 1\n",
    "ops/far.py": 'CONSTANT = 7\n"""What it is."""\n\n\ndef f(x):\n    return x\n',
    "ops/stranger.py": "STRANGER = 1\n",
}


def _digests(edited: dict[str, str]) -> dict[str, str]:
    return sources.Sources({path: text.encode() for path, text in edited.items()}).digests()


CHANGES = [
    ("ops/far.py", "7", "8"),
    ("ops/far.py", "return x", "return -x"),
    ("ops/far.py", "def f(x):", "def f(x: int):"),
    ("ops/module.py", "1", "2"),
    ("ops/names/taken.py", "1", "2"),
    ("ops/names/made.py", "1", "2"),  # whose name hides the module
    ("ops/near/__init__.py", "y as y", "y as y, z"),
    ("ops/kernels.py", "import y", "import y as z"),
    ("jit/launch/record.py", "1", "2"),
    ("ops/far.py", "7", "(this is no Python"),
    ("ops/api.py", "import kernel\n    return kernel\n@lazy_kernel\ndef _chosen",
     "import kernel as k\n    return k\n@lazy_kernel\ndef _chosen"),
]  # fmt: skip
NONE = [
    ("ops/far.py", "7", "7  # days"),
    ("ops/far.py", "What it is.", "It is a constant."),
    ("ops/far.py", "def f(x):", 'def f(x):\n    """x."""\n\n'),
    ("ops/kernels.py", "Kernels.", "One kernel."),
    ("jit/launch/lazy.py", "1", "2"),  # it only loads kernels
    ("ops/stranger.py", "1", "2"),
    ("ops/__init__.py", "stranger", "other"),
    ("ops/near/beside.py", "1", "2"),
    ("ops/annotated.py", "1", "2"),
    ("ops/api.py", "return _named()", "return -_named()"),
    ("ops/api.py", "LIMIT = 5", "LIMIT = 6"),
    ("ops/api.py", "if LIMIT", "if not LIMIT"),
]


@pytest.mark.parametrize(("path", "old", "new"), CHANGES)
def test_a_kernel_changes_with_all_that_it_imports(path: str, old: str, new: str) -> None:
    assert TOY[path].count(old) == 1
    before, after = _digests(TOY), _digests(TOY | {path: TOY[path].replace(old, new)})
    assert before["kvarn.ops.api:_named"] != after["kvarn.ops.api:_named"]
    assert before[sources.ALL] != after[sources.ALL]


@pytest.mark.parametrize(("path", "old", "new"), NONE)
def test_a_kernel_changes_with_nothing_else(path: str, old: str, new: str) -> None:
    assert TOY[path].count(old) == 1
    before, after = _digests(TOY), _digests(TOY | {path: TOY[path].replace(old, new)})
    assert before["kvarn.ops.api:_named"] == after["kvarn.ops.api:_named"]


@pytest.mark.parametrize("name", ["_chosen", "_default"])
def test_what_uses_names_of_its_module_changes_with_all_of_that(name: str) -> None:
    before = _digests(TOY)
    for path, old in (("ops/api.py", "LIMIT = 5"), ("ops/stranger.py", "STRANGER = 1")):
        after = _digests(TOY | {path: TOY[path].replace(old, f"{old}0")})
        assert before[f"kvarn.ops.api:{name}"] != after[f"kvarn.ops.api:{name}"]


def test_an_edit_compiles_few_kernels_again() -> None:
    """In the median over the files of ops/, 5% of all kernels that are named."""
    contents = folders.read_sources()
    closures = sources.Sources(contents).closures()
    named = [name for name in closures if ":" in name and name.startswith("kvarn.ops.")]
    kernels = [closures[name] for name in named]
    assert len(kernels) > 50 and all("kvarn.jit.launch.define" in modules for modules in kernels)
    shares = {
        name: sum(name in modules for modules in kernels) / len(kernels)
        for name in closures
        if name.startswith("kvarn.ops.") and ":" not in name
    }
    # All files of the room but its __init__, which is `kvarn.ops` itself.
    assert len(shares) == len([*(folders.PACKAGE / "ops").rglob("*.py")]) - 1
    assert statistics.median(shares.values()) <= 0.05
    wrappers = {name.partition(":")[0] for name in named}
    assert all(shares[name] == 0 for name in wrappers), "kernels import wrappers of kernels"


def test_packages_pass_names_on_and_do_nothing_else() -> None:
    """So a kernel does not depend on the packages around its module."""
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.Assign | ast.AnnAssign | ast.If
    for path, source in folders.read_sources().items():
        if not path.endswith("__init__.py"):
            continue
        body = [one for one in ast.parse(source).body if not sources._is_text(one)]
        assert all(isinstance(one, kinds) for one in body), path


def test_no_module_of_kernels_is_imported_by_a_computed_name() -> None:
    """`sources` would not see it."""
    for path, source in folders.read_sources().items():
        nodes = list(ast.walk(ast.parse(source)))
        named = {one.id for one in nodes if isinstance(one, ast.Name)}
        named |= {one.attr for one in nodes if isinstance(one, ast.Attribute)}
        assert not named & {"import_module", "__import__", "exec", "eval"}, path


def test_digests_are_kept_for_the_next_process(places, tmp_path, monkeypatch) -> None:
    (folder,) = places(tmp_path)
    read = sources._digests.__wrapped__
    first = read()
    assert first == _digests({p: s.decode() for p, s in folders.read_sources().items()})
    (kept,) = folder.iterdir()
    assert folders.is_kernel(kept.name)
    with monkeypatch.context() as patched:
        patched.setattr(folders, "read_sources", None)
        assert read() == first
    for damage in (b"", kept.read_bytes()[:-1]):
        kept.write_bytes(damage)
        assert read() == first
    with pytest.raises(files.Damaged):
        sources._parse(b"no digest\nkvarn")


def test_digests_make_garbage_wait(places, tmp_path, monkeypatch) -> None:
    places(tmp_path)
    made = SimpleNamespace(digests=lambda: {"collects": str(gc.isenabled())})
    monkeypatch.setattr(sources, "Sources", lambda contents: made)
    assert sources._digests.__wrapped__() == {"collects": "False"}
    assert gc.isenabled()


def test_of_sources_edited_since_the_process_began_nothing_is_known(
    places, tmp_path, monkeypatch
) -> None:
    (folder,) = places(tmp_path)
    monkeypatch.setattr(folders, "SOURCES", 40 * "0")
    monkeypatch.setattr(sources, "_digests", sources._digests.__wrapped__)
    assert sources.digest("kvarn.ops.types") == sources.digest("elsewhere") == 40 * "0"
    assert sources.digest("kvarn.ops.types", "") == ""
    assert not list(folder.iterdir())


KERNELS = {
    "__init__": '"""A kernel."""\n',
    "api": """
from ...jit.launch import DefinedKernel, lazy_kernel
from .stranger import STRANGER

@lazy_kernel
def fill() -> DefinedKernel:
    from .kernels import kernel
    return kernel
""",
    "kernels": """
from .factory import make
from .handed import number

kernel = make(number)
""",
    "factory": """
import numpy as np
from ...jit.launch.define import Share, kernel
from ...jit.simd import I64, emits, store
from numba import types
from llvmlite import ir

def make(number):
    constant = emits(types.int64)(lambda b: ir.Constant(I64, number()))

    @kernel
    def fill_kernel(share: Share, x: int):
        store(x, 0, np.int64(constant()))

    return fill_kernel
""",
    "handed": "from . import middle\n\ndef number():\n    return 10 + middle.number()\n",
    "middle": "from .far import CONSTANT\n\ndef number():\n    return CONSTANT\n",
    "far": "CONSTANT = 7\n",
    "stranger": "STRANGER = 1\n",
}
PROGRAM = """
import sys
import numpy as np
from kvarn.jit.kernel_cache import Counts
from kvarn.ops.toy import api

x = np.zeros(1, np.int64)
api.fill(x.ctypes.data, parallel=False)
print(x[0], int(Counts.compiled > 0), int("numba" in sys.modules))
"""


def test_the_next_process_uses_what_its_sources_say(tmp_path: Path) -> None:
    """A constant is three imports away from the kernel and known to no function that is compiled;
    who makes the kernel gets it by a function that was handed over."""
    package = tmp_path / "kvarn"
    for room in ("jit", "ops", "system"):
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "__init__.py", package)
    toy = package / "ops" / "toy"
    toy.mkdir()

    def run(**edited: str) -> tuple[int, ...]:
        """What the kernel says, whether it was compiled, and whether Numba was imported."""
        for name, text in (KERNELS | edited).items():
            (toy / f"{name}.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONPATH": str(tmp_path), "KVARN_CACHE": str(tmp_path / "kept")},
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return tuple(map(int, done.stdout.split()))

    assert run() == (17, 1, 1)
    commented = '"""Says seven."""\n\nCONSTANT = 7  # days\n'
    assert run(far=commented, stranger="STRANGER = 2\n") == (17, 0, 0)
    assert run(far="CONSTANT = 8\n") == (18, 1, 1)
    assert run(handed=KERNELS["handed"].replace("10", "20")) == (27, 1, 1)
    assert run() == (17, 0, 0)  # other versions have not taken its place
    for name in sources.RUNTIME:
        path = package.joinpath(*name.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        path.write_text(path.read_text() + "\n_EDITED = 1\n")
    assert run() == (17, 0, 0)
    emit = package / "jit/kernel_cache/emit.py"
    emit.write_text(emit.read_text() + "\n_EDITED = 1\n")
    assert run() == (17, 1, 1)
