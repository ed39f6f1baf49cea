"""The repository root is the package `kvarn`: its folders are the package's rooms, but for `lab/`
and `tests/`, packages of their own that are used from a checkout and not installed."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOMS = (
    "cluster", "commands", "compat", "convert", "cuda_ops", "evals", "jit", "models", "ops",
    "runtime", "serve", "system",
)  # fmt: skip


def packages() -> list[str]:
    """`kvarn` and every folder of its rooms that has an `__init__.py`."""
    root = Path(__file__).resolve().parent
    folders = [init.parent for room in ROOMS for init in (root / room).rglob("__init__.py")]
    return ["kvarn", *sorted("kvarn." + ".".join(p.relative_to(root).parts) for p in folders)]


class BuildPy(build_py):
    """Leaves out this file, which stands among the modules of the package."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[1] != "setup"]


setup(package_dir={"kvarn": "."}, packages=packages(), cmdclass={"build_py": BuildPy})
