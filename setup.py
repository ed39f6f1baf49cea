"""The repository root is the package `kvarn`: its folders are the package's rooms."""

from pathlib import Path

from setuptools import setup

ROOMS = ("commands", "evals", "mini", "models", "ops", "runtime")


def packages() -> list[str]:
    """`kvarn` and every folder of its rooms that has an `__init__.py`."""
    root = Path(__file__).resolve().parent
    found = [init.parent for room in ROOMS for init in (root / room).rglob("__init__.py")]
    return ["kvarn", *sorted("kvarn." + ".".join(p.relative_to(root).parts) for p in found)]


setup(package_dir={"kvarn": "."}, packages=packages())
