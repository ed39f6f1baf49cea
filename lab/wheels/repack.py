"""Adds a folder of kernels to a wheel, and names the machines that the result is for.

A wheel is a zip file. `NAME.dist-info/WHEEL` has its tags and `NAME.dist-info/RECORD` the SHA-256
and size of every other file (PyPA's "Binary distribution format").
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from pathlib import Path

PURE = "py3-none-any"
_TIME = (1980, 1, 1, 0, 0, 0)  # the same wheel for the same content
_MODE = 0o644 << 16


def repack(pure: Path, bundled: Path, machine: str) -> Path:
    """Write the wheel with the files below `bundled` as `kvarn/bundled`, beside `pure`; its path.

    machine: a platform tag ("manylinux_2_28_x86_64"). Raises `ValueError` for a wheel that is not
    for any machine.
    """
    if not pure.name.endswith(f"-{PURE}.whl"):
        raise ValueError(f"{pure.name} is not for any machine: expected NAME-{PURE}.whl")
    out = pure.with_name(pure.name.replace(PURE, f"py3-none-{machine}"))
    added = {
        f"kvarn/bundled/{file.relative_to(bundled).as_posix()}": file.read_bytes()
        for file in sorted(bundled.rglob("*"))
        if file.is_file()
    }
    with zipfile.ZipFile(pure) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        files = {info.filename: old.read(info) for info in old.infolist()}
        (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
        tags = record.replace("RECORD", "WHEEL")
        files = {name: data for name, data in files.items() if name != record} | added
        files[tags] = _tagged(files[tags].decode(), machine).encode()
        files[record] = _record(files, record)
        for name, data in files.items():
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, _MODE
            new.writestr(info, data)
    return out


def _tagged(text: str, machine: str) -> str:
    """The file WHEEL, for this machine. Its modules are still those of any machine."""
    text = re.sub(rf"(?m)^Tag: {PURE}$", f"Tag: py3-none-{machine}", text)
    return re.sub(r"(?m)^Root-Is-Purelib: true$", "Root-Is-Purelib: false", text)


def _record(files: dict[str, bytes], own: str) -> bytes:
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((own, "", ""))
    return lines.getvalue().encode()
