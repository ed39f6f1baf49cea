"""The bundle: a folder that was moved, with nothing of this Python in reach."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.capi.build import BuildError
from kvarn.runtime.capi.bundle import NONE, bundle, kernels, packages, python

PACKAGE = Path(kvarn.__file__).parent
OPTIONAL = {"cffi", "faiss", "gguf", "llguidance", "msgspec", "torch", "triton"}
OPTIONAL |= {"bs4", "mammoth", "markdownify", "pypdf"}
"""To build libkvarn, for one index, to write encoders, to look for GPUs, to read documents."""

RENDER = """
import sys
from kvarn.runtime.chat.template import ChatTemplate
text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
template = ChatTemplate(text, bos_token="", eos_token="")
print(template.render([{"role": "user", "content": "geese"}]))
print(*sorted({path for path in sys.path if path}), sep="\\n")
"""


@pytest.fixture(scope="module")
def moved(built: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder, moved after it was made and a program in it compiled; what was said of it."""
    folder = tmp_path_factory.mktemp("bundle")
    made, moved = folder / "made", folder / "moved è"
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "kvarn.runtime.capi", "--bundle", str(made)]
    done = subprocess.run(
        [*command, "--kernels", "dense"], env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{made}/lib/libkvarn.so\n"
    command = [shutil.which(os.environ.get("CC", "cc")) or "cc", f"{made}/share/examples/hello.c"]
    lib = [f"-L{made}/lib", "-lkvarn", "-Wl,-rpath,$ORIGIN/lib"]
    subprocess.run([*command, "-o", f"{made}/hello", f"-I{made}/include", *lib], check=True)
    made.rename(moved)
    return moved, done.stderr


@pytest.fixture(scope="module")
def alone(moved: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a program of the bundle with no environment, and with this Python, its packages and
    kvarn's sources hidden."""
    cache = tmp_path_factory.mktemp("cache")
    hidden = {sys.prefix, sys.base_prefix, str(PACKAGE.resolve())}
    inner_first = sorted(hidden - {"/usr"}, reverse=True)
    hide = "".join(f"mount -t tmpfs none '{path}' && " for path in inner_first)
    space = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], check=False).returncode:
        pytest.skip("this user cannot make a mount namespace, which hides this Python")

    def alone(*words: str) -> str:
        bare = ["env", "-i", "LC_ALL=C", f"KVARN_CACHE={cache}", *words]
        script = f'cd / && {hide}! ls "$0" 2>/dev/null && exec "$@"'
        done = subprocess.run(
            [*space, "sh", "-c", script, sys.executable, *bare],
            capture_output=True, text=True, encoding="utf-8", timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return alone


@pytest.mark.slow
def test_a_program_runs_with_nothing_but_the_folder(
    moved: tuple[Path, str], alone: Callable[..., str], environment: dict[str, str], built: Path
) -> None:
    """And compiles no kernel; the text is that of a libkvarn that uses this Python."""
    folder = moved[0]
    text = alone(f"{folder}/hello")
    cache = Path(alone("sh", "-c", "echo $KVARN_CACHE").strip())
    assert not [one for one in cache.rglob("*") if one.is_file()]
    command = [f"{folder}/hello"]
    lib = {"LD_PRELOAD": f"{built}/lib/libkvarn.so"}
    done = subprocess.run(
        command, env=environment | lib, capture_output=True, text=True, check=True
    )
    assert text == done.stdout and len(text) > 20


@pytest.mark.slow
def test_it_renders_templates_and_compiles_what_is_missing(
    moved: tuple[Path, str], alone: Callable[..., str]
) -> None:
    folder = moved[0]
    rendered, *paths = alone(f"{folder}/bin/{python.standard_library(folder).name}", "-c",
                             RENDER).splitlines()  # fmt: skip
    assert rendered == "<user>geese"
    assert all(Path(path).is_relative_to(folder) for path in paths)
    script = (
        "from kvarn.runtime.loading.load import load\n"
        "from kvarn.runtime.loading.default_model import default_model_path\n"
        "from kvarn.runtime.store import Ram\n"
        "from kvarn.jit.kernel_cache import Counts\n"
        "context = load(default_model_path()).context(64, store=Ram('q4_0', 'q4_0'))\n"
        "context.prefill(list(range(1, 20)))\n"
        "print(Counts.compiled, context.n_ctx)\n"
    )
    n, _ = alone(f"{folder}/bin/{python.standard_library(folder).name}", "-c", script).split()
    assert int(n) > 0


@pytest.mark.slow
def test_kernels_are_there_for_each_cpu(moved: tuple[Path, str]) -> None:
    """The same functions, though this machine may not run those of all CPUs."""
    bundled = python.site_packages(moved[0]) / "kvarn" / "bundled"
    listed = json.loads((bundled / "targets.json").read_text())
    assert listed == [list(one) for one in kernels.targets()]
    found = {
        folder.name.split("-")[0]: sorted(file.name.split("-")[0] for file in folder.iterdir())
        for folder in (bundled / "kernels").iterdir()
    }
    assert len(found) == len(listed)
    first, *others = found.values()
    assert len(first) > 10 and all(names == first for names in others)
    if shutil.which("objdump") and "avx512" in found:
        wide = {name for name in found if "zmm" in assembly(bundled, name)}
        assert wide == {"avx512"}


def assembly(bundled: Path, variant: str) -> str:
    """Of all kernels of a variant, whose files end with an object file."""
    (folder,) = (bundled / "kernels").glob(f"{variant}-*")
    text = ""
    for file in folder.glob("*.code"):
        raw = file.read_bytes()
        object_file = bundled / "object"
        object_file.write_bytes(raw[raw.index(b"\x7fELF") :])
        text += subprocess.run(
            ["objdump", "-d", str(object_file)], capture_output=True, text=True, check=True
        ).stdout
        object_file.unlink()
    return text


@pytest.mark.slow
def test_what_fills_it_is_told_and_has_licences(moved: tuple[Path, str]) -> None:
    folder, said = moved
    assert " MB in all\n" in said and " MB the package llvmlite\n" in said
    whole = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    assert whole < 400
    licences = folder / "share" / "licenses"
    libraries = {one.name for one in (folder / "lib").glob("*.so*")}
    ours = {name for name in libraries if name.startswith(("libkvarn", "libpython"))}
    named = {*packages.NEEDED, "kvarn", "python", "libgomp.so.1", *(libraries - ours)}
    assert {one.name for one in licences.iterdir()} == named
    for name in named:
        files = [file for file in (licences / name).rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in files) > 500, name
    for name in ("huggingface_hub", "gguf", "tqdm", "yaml", "pip", "setuptools"):
        assert not (python.site_packages(folder) / name).exists()


def test_what_the_rooms_import_is_in_it() -> None:
    found, rooms = set(), set()
    for room in packages.ROOMS:
        for file in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    found |= {name.name.split(".")[0] for name in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(str(node.module).split(".")[0])
                elif isinstance(node, ast.ImportFrom):
                    inside = file.relative_to(PACKAGE).parts[: -node.level]
                    rooms.add((*inside, *(node.module or "").split("."))[0])
    assert rooms - {""} <= set(packages.ROOMS)  # "": names of kvarn itself
    third = {name for name in found if name not in sys.stdlib_module_names} - {"_cffi_backend"}
    assert third - OPTIONAL <= set(packages.NEEDED)
    assert set(packages.NEEDED) - {"markupsafe"} <= third  # which jinja2 needs


def test_a_folder_with_something_else_is_left_alone(built: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(BuildError, match="exists and is not an earlier bundle: remove it"):
        bundle(tmp_path, NONE, [])
    assert (tmp_path / "thesis.txt").read_text() == "all of it"
