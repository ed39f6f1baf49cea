"""How the rendering process is started: Python with three packages and almost no environment."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from .errors import TemplateError

# Imports the packages given as NAME FOLDER pairs, and makes no others importable.
_BOOT = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
for name, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    spec = spec_from_file_location(
        name, folder + "/__init__.py", submodule_search_locations=[folder]
    )
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
from sandbox.worker import main
main()
"""
# What an interpreter may need to find its libraries, and the time zone for strftime's %s.
_ENVIRONMENT = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "TZ")


def command() -> list[str]:
    """The arguments of the process; `TemplateError` where something is missing."""
    return [_interpreter(), "-I", "-S", "-X", "utf8", "-c", _BOOT, *_packages()]


def environment() -> dict[str, str]:
    """The process's environment variables: no secrets, no proxies, no Python paths."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def _packages() -> list[str]:
    """Name and folder of each package that the process imports, dependencies first."""
    folders = {}
    for name in ("markupsafe", "jinja2"):
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise TemplateError(f"chat template: the package {name} is missing: install it")
        folders[name] = spec.submodule_search_locations[0]
    folders["sandbox"] = str(Path(__file__).parent)
    return [word for pair in folders.items() for word in pair]


def _interpreter() -> str:
    """The running Python. If it is embedded in a C program, `sys.executable` may be that one."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    candidates = [
        sys.executable,
        getattr(sys, "_base_executable", None),
        str(Path(sysconfig.get_config_var("BINDIR") or sys.exec_prefix) / name),
        str(Path(sys.exec_prefix) / "bin" / name),
    ]
    paths = [path for path in candidates if path]
    for path in paths:
        is_python = re.match(r"(python|pypy)[\d.]*[a-z]?(\.exe)?$", Path(path).name, re.IGNORECASE)
        if is_python and os.access(path, os.X_OK):
            return path
    raise TemplateError(
        "chat template: templates are rendered in a process of their own, which needs the program "
        f"{name}; found none at {', '.join(dict.fromkeys(paths))}: install it there"
    )
