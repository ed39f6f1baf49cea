"""`kvarn pack`: texts read once, kept on disk, and asked about without reading them again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.home import pack_path, saved_path, session_path
from ...runtime.memory import human_bytes
from ...system.errors import KvarnError
from ...system.terminal import say, show, show_json
from ...system.text import one_line
from ..options.values import file_name
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import byte_bar, progress_bar
from ..terminal.tables import NO_PACKS, list_packs, pack_table, texts_table
from .pack_build import BUILDING, INDEXING, NAME_HELP, add_build, add_index, build, index

if TYPE_CHECKING:
    from ...runtime.store.facts import PackInfo

_SAVED_HELP = "a name that `kvarn pack ls` lists (of two, the pack), or a path with a /"


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A context pack is a text that a model has read, kept on disk: `kvarn run "
        "--pack NAME` and `kvarn chat --pack NAME` continue after it without reading it again."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_build(_action(actions, "build", "read files into a pack", BUILDING))
    add_index(_action(actions, "index", "store the index of a method in a pack", INDEXING))
    listing = _action(actions, "ls", "list your packs and chat sessions, or a folder's packs")
    listing.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        help="a folder that `pack build --each` fills: what became of each text",
    )
    info = _action(actions, "info", "show what is in a pack")
    for reporting in (listing, info):
        reporting.add_argument("--json", action="store_true", help="print JSON")
    verify = _action(
        actions,
        "verify",
        "read a pack and check every byte of it",
        "Read a pack and check every byte against its digest. Check that K, V, hidden "
        "states and the floats of indexes are finite, and that orders, blocks and tables of "
        "indexes are valid. Indexes are not computed again.",
    )
    remove = _action(actions, "rm", "delete packs")
    export = _action(actions, "export", "write a pack to one file")
    for action, help in ((info, _SAVED_HELP), (verify, _SAVED_HELP), (export, NAME_HELP)):
        action.add_argument("name", metavar="NAME", type=file_name, help=help)
    remove.add_argument("names", metavar="NAME", type=file_name, nargs="+", help=NAME_HELP)
    export.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the file to write"
    )
    import_ = _action(actions, "import", "make a pack of an exported file")
    import_.add_argument("file", metavar="FILE", type=Path, help="a file of `kvarn pack export`")
    import_.add_argument(
        "-o", "--output", metavar="NAME", type=file_name, help=f"{NAME_HELP} (default: the file's)"
    )


def _action(actions: Any, name: str, help: str, description: str = "") -> argparse.ArgumentParser:
    """An action. Unless told, its own help begins with what the list says of it."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=help, description=description or f"{help[0].upper()}{help[1:]}."
    )
    return parser


def run(options: argparse.Namespace) -> int:
    actions = {
        "build": build, "index": index, "ls": ls, "info": info, "verify": verify, "rm": rm,
        "export": export, "import": import_,
    }  # fmt: skip
    return actions[options.action](options)


def ls(options: argparse.Namespace) -> int:
    if options.folder is not None:
        return _ls_folder(options)
    packs = list_packs()
    if options.json:
        show_json([pack.as_dict() for pack in packs])
    elif packs:
        show(pack_table(packs))
    else:
        say(NO_PACKS)
    return 0


def _ls_folder(options: argparse.Namespace) -> int:
    from ...runtime.packs.notes import texts_in

    texts = texts_in(options.folder)
    if options.json:
        show_json([text.as_dict() for text in texts])
    else:
        show(texts_table(texts))
    return 0


def _states(facts: PackInfo) -> dict[str, str]:
    """A row for models whose layers carry a state."""
    if not facts.state_bytes:
        return {}
    n, after = len(facts.states), ""
    if n:
        after = f", the last ones after {', '.join(f'{p:,}' for p in facts.states[-4:])} tokens"
    return {"states": f"{n} checkpoints, {human_bytes(n * facts.state_bytes)}{after}"}


def info(options: argparse.Namespace) -> int:
    from ...runtime.packs.pack import pack_info

    facts = pack_info(saved_path(options.name))
    if options.json:
        show_json(facts.as_dict())
        return 0
    unfinished = "" if facts.complete else ": not finished: build it again, unless that runs now"
    rows = {
        "pack": facts.path,
        "id": facts.id,
        "model": f"{facts.model} (fingerprint {facts.fingerprint})",
        "model file": facts.model_path,
        **({"adapters": ", ".join(facts.adapters)} if facts.adapters else {}),
        "tokens": f"{facts.progress}{unfinished}",
        "KV cache": facts.kv,
        "on disk": human_bytes(facts.n_bytes),
        "commits": str(facts.commits),
        "indexes": ", ".join(facts.index_of) or "none",
        "prefill": facts.prefill,
        **_states(facts),
        "parent": f"{facts.parent} (prefill {facts.parent_prefill})" if facts.parent else "none",
    }
    for key, value in rows.items():
        show(f"{key:<11} {one_line(value)}")
    for i, measured in enumerate(facts.probe):
        show(f"{'probe' if i == 0 else '':<11} {measured}")
    return 0


def verify(options: argparse.Namespace) -> int:
    from ...runtime.packs.pack import pack_info
    from ...runtime.store.disk.checking.verify import verify

    path = saved_path(options.name)
    with progress_bar("verifying", "segments", delay=0) as progress:
        damage = verify(path, progress)
    for line in damage:
        say(line)
    if not damage:
        facts = pack_info(path)
        end = "" if facts.complete else f"; {facts.n_tokens:,} of {facts.goal:,} tokens are read"
        show(one_line(f"{path}: no damage found{end}"))
    return int(bool(damage))


def rm(options: argparse.Namespace) -> int:
    from ...runtime.packs.pack import remove_pack

    for name in options.names:
        path = pack_path(name)
        if not path.exists() and (session := session_path(name)).is_dir():
            raise KvarnError(f"{name} is a session: `kvarn pack rm {session}` removes it")
        if left := remove_pack(path):
            say(f"removed {path}, but for files that are not kvarn's: {one_line(', '.join(left))}")
        else:
            say(f"removed {path}")
    return 0


def export(options: argparse.Namespace) -> int:
    from ...runtime.store.disk.archive import export_pack

    path = pack_path(options.name)
    stopped = on_ctrl_c(lambda: f"stopped: {options.output} was not written")
    with stopped, byte_bar("exporting") as progress:
        export_pack(path, options.output, progress)
    say(f"exported {path} to {options.output}, {human_bytes(options.output.stat().st_size)}")
    return 0


def import_(options: argparse.Namespace) -> int:
    from ...runtime.store.disk.archive import import_pack

    path = pack_path(options.output or options.file.name.partition(".")[0])
    with on_ctrl_c(lambda: f"stopped: {path} was not made"), byte_bar("importing") as progress:
        import_pack(options.file, path, progress)
    say(f"imported to {path}")
    return 0
