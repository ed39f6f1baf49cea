"""Options that say where K and V are kept: in memory, in a folder, after a pack."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.home import pack_path
from ...runtime.store import Disk, Ram
from ...system.errors import KvarnError
from ..terminal.notices import notice
from .model import model_from, names_model
from .values import file_name

if TYPE_CHECKING:
    from ...runtime.model import Model
    from ...runtime.packs import PackInfo

RAM = Ram.name


def add_pack_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--pack` and `--io`."""
    group = parser.add_argument_group("packs")
    group.add_argument(
        "--pack",
        type=file_name,
        metavar="NAME",
        help="go on from a context pack (see `kvarn pack`), which stays as it is",
    )
    add_io_option(group)


def add_io_option(parser: argparse._ActionsContainer) -> None:
    declared = Disk.options()["io"]
    parser.add_argument(
        "--io",
        choices=declared.choices,
        default=Disk.default("io"),
        help=f"{declared.help} (default %(default)s)",
    )


def add_kv_option(parser: argparse._ActionsContainer, what: str) -> None:
    """Adds `--kv`, which means `what` where it is a folder."""
    parser.add_argument(
        "--kv",
        type=file_name,
        metavar=f"{RAM}|DIR",
        default=RAM,
        help=f"where the KV cache is kept: {Ram.summary} (default), or in the folder DIR, {what}",
    )


def kv_folder(options: argparse.Namespace) -> Path | None:
    """The folder of `--kv`, which may not exist yet; None for memory."""
    if options.kv == RAM:
        return None
    folder = Path(options.kv).expanduser()
    if folder.is_file():
        raise KvarnError(f"--kv {folder} is a file: expected a folder, or a name for a new one")
    return folder


def pack_of(options: argparse.Namespace) -> PackInfo | None:
    """The pack of `--pack`, which must hold something."""
    if options.pack is None:
        return None
    info = with_its_model(options, pack_path(options.pack))
    if not info.n_tokens:
        raise KvarnError(f"pack {info.path} is empty: build it first")
    if not info.complete:
        notice(f"pack {info.path} is not finished: {info.n_tokens:,} of {info.goal:,} tokens")
    return info


def with_its_model(options: argparse.Namespace, path: Path) -> PackInfo:
    """The facts of a pack. Without `-m`, its model becomes the one to load; `KvarnError` if that is
    gone."""
    from ...runtime.pack_links import model_of
    from ...runtime.packs import pack_info

    if not path.exists():
        raise KvarnError(
            f"pack {path}: not a context pack: no such folder; `kvarn pack ls` lists the packs"
        )
    info = pack_info(path)
    if names_model(options):
        return info
    options.model = model_of(info)
    if options.model is None:
        raise KvarnError(
            f"pack {info.path} was made with {info.model}, {info.model_path or 'an unknown file'}, "
            "which is gone: if it was moved, name its new place once with -m FILE"
        )
    notice(f"using the model of the pack: {options.model}")
    return info


def saved_in(options: argparse.Namespace, folder: Path | None) -> PackInfo | None:
    """The pack in a folder, with its model, if there is one already."""
    if folder is None or not (folder / "pack.json").exists():
        return None
    return with_its_model(options, folder)


def model_for(
    options: argparse.Namespace,
    pack: PackInfo | None,
    disk: Disk | None = None,
    ahead: bool = True,
) -> Model:
    """The model that the options name, which a pack whose model was moved finds there from now on.

    pack: what the context begins with. disk, ahead: see `model_from`.
    """
    from ...runtime.pack_links import name_model

    model = model_from(options, disk, ahead=ahead)
    if pack is not None:
        name_model(Path(pack.path), model)
    return model


def disk_from(
    options: argparse.Namespace,
    path: str | Path,
    read_only: bool = False,
    parent: str | None = None,
) -> Disk:
    """The KV cache in the folder `path`, as the options want it."""
    k, v = options.kv_type or (None, None)
    return Disk(path, k, v, read_only=read_only, io=options.io, parent=parent)


def n_kept(path: Path) -> int:
    """Tokens that a pack holds; none where its making did not come that far."""
    from ...runtime.packs import pack_info

    return pack_info(path).n_tokens if (path / "pack.json").exists() else 0
