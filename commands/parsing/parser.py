"""The parser of the command line: argparse's, with errors in one line that says what to do.

No abbreviations: an option that is added later must not change what a script means.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ... import __version__
from ...system.terminal import say, say_lines, show
from ...system.text import shown
from .. import COMMANDS
from ..options.values import NO_MODEL, file_path, integer, number, utf8
from .foreign import COMMANDS_ELSEWHERE, ELSEWHERE, FOREIGN
from .rare import is_rare
from .words import flag_in, nearest, nearest_option, options_first, short_name

_NEEDS_VALUE = re.compile(r"argument (.+): expected (?:one|at least one) argument")
_TAKES_NONE = re.compile(r"argument (.+): ignored explicit argument (.+)")
_EXCLUDE = re.compile(r"argument (.+): not allowed with argument (.+)")
_REQUIRED = re.compile(r"the following arguments are required: (.+)")
_ONE_OF = re.compile(r"one of the arguments (.+) is required")
_OTHER = re.compile(r"argument (.+?): (.+)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """argparse's, with kvarn's messages, which `system.terminal` prints.

    dash: the option that a bare `-` among the words stands for, with `-` as its value. gathers:
    whether options may stand among words that belong together. later: what
    declares options whose import takes long; it is called once a word or the help needs them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self.color = False  # Python 3.14 paints help and errors; what is painted is escaped here
        self.dash = ""
        self.gathers = False
        self.later: Callable[[Parser], None] | None = None
        self._lists_rare = False
        self.add_argument("--help-all", action=_HelpAll, help=argparse.SUPPRESS)
        self._words: list[str] = []
        self.register("type", Path, file_path)
        self.register("type", int, integer)
        self.register("type", float, number)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Like argparse's, but refuses unknown words here, where it can name the command."""
        words = sys.argv[1:] if args is None else list(args)
        known = self._option_string_actions.keys() - {"-h", "--help", "--help-all"}
        if any(word[:1] == "-" and word.partition("=")[0] not in known for word in words):
            self.declare_all()
        if self._commands() and words and words[0][:1] == "-":
            self._refuse_unknown(words[0])
        self._words = words
        words = self._without_dash(words)
        if self.gathers:
            words = options_first(words, self._option_string_actions)
        parsed, left = super().parse_known_args(words, namespace)
        if left:
            self.error(f"no word is expected where {shown(left[0])} stands: {self._text_form()}")
        return parsed, left

    def declare_all(self) -> None:
        """Declare the options that are not declared yet."""
        later, self.later = self.later, None
        if later is not None:
            later(self)

    def print_all_help(self) -> None:
        """The help, with the options that `--help` leaves out."""
        self._lists_rare = True
        self.print_help()

    def format_help(self) -> str:
        """Like argparse's, without the options that few people need; says how many those are."""
        rare = [] if self._lists_rare else [action for action in self._actions if is_rare(action)]
        rare = [action for action in rare if action.help != argparse.SUPPRESS]
        helps = [action.help for action in rare]
        for action in rare:
            action.help = argparse.SUPPRESS
        try:
            text = super().format_help()
        finally:
            for action, help in zip(rare, helps):
                action.help = help
        return f"{text}\n`{self.prog} --help-all` lists {len(rare)} more.\n" if rare else text

    def error(self, message: str) -> NoReturn:
        """One line, with a pointer to the help; exit code 2."""
        plain = self._plain(message)
        say(f"{plain}{' See' if plain.endswith('?') else '; see'} `{self.prog} --help`")
        sys.exit(2)

    def _plain(self, message: str) -> str:
        """A message of argparse in kvarn's words."""
        if match := _NEEDS_VALUE.fullmatch(message):
            return f"{self._typed(match[1])} needs a value: {self._form(match[1])}"
        if match := _TAKES_NONE.fullmatch(message):
            return f"{self._typed(match[1])} takes no value: found {match[2]}"
        if match := _EXCLUDE.fullmatch(message):
            return f"give one of {self._typed(match[2])} and {self._typed(match[1])}, not both"
        if match := _REQUIRED.fullmatch(message):
            missing = ", ".join(map(self._form, match[1].split(", ")))
            choices = f", one of {', '.join(self._commands())}" if self._commands() else ""
            return f"{self.prog} needs {missing}{choices}"
        if match := _ONE_OF.fullmatch(message):
            return f"{self.prog} needs {' or '.join(map(self._form, match[1].split()))}"
        if match := _OTHER.fullmatch(message):
            form = f"; {self._text_form()}" if match[2].endswith(NO_MODEL) else ""
            return f"{self._typed(match[1])}: {match[2]}{form}"
        return message

    def _refuse(self, unknown: str) -> NoReturn:
        """End with `run has no option …`; the line begins with kvarn's name already."""
        command = self.prog.removeprefix("kvarn").strip()
        self.error(f"{command} has no {unknown}" if command else f"there is no {unknown}")

    def _typed(self, name: str) -> str:
        """The name of an option that the user typed, by argparse's name of it: -c/--ctx/--ctx-size
        → -c; of several, the best known one."""
        names = {flag_in(word, name.split("/")) for word in self._words} - {""}
        return names.pop() if len(names) == 1 and name[:1] == "-" else short_name(name)

    def _form(self, name: str) -> str:
        """How a user writes an option, by argparse's name of it: -f/--file → -f FILE."""
        for action in self._actions:
            if action.option_strings and name == "/".join(action.option_strings):
                metavar = action.metavar or "|".join(map(str, action.choices or ("VALUE",)))
                return f"{action.option_strings[0]} {metavar}"
        return name

    def _text_form(self) -> str:
        """How to give the command a text, which the user perhaps wrote as a word alone; or, where
        it takes none, its words."""
        known = self._option_string_actions
        flags = (word.partition("=")[0] for word in self._words)
        given = {known[flag].dest for flag in flags if flag in known}
        if "-p" in known and known["-p"].metavar == "TEXT" and not given & {"prompt", "files"}:
            return 'give a prompt with -p "TEXT"'
        words = [action for action in self._actions if not action.option_strings]
        if not words:
            return "omit it"
        form = ELSEWHERE.get((self._command, "-p"), "")
        if form and ("-f" in known or "-f" not in form):
            return form
        if known.keys() & {"-p", "-f"} or any(action.type is utf8 for action in words):
            return "texts with spaces need quotes"
        return f"expected {' '.join(str(action.metavar or action.dest) for action in words)} alone"

    @property
    def _command(self) -> str:
        """The first word behind kvarn."""
        return self.prog.partition(" ")[2].partition(" ")[0]

    def _commands(self) -> tuple[str, ...]:
        """The commands, or actions, below this parser; none for one of options alone."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return tuple(action.choices)
        return ()

    def _without_dash(self, words: list[str]) -> list[str]:
        """The words, with `dash` before each `-` that is not the value of an option."""
        if not self.dash or "-" not in words:
            return words
        written: list[str] = []
        for i, word in enumerate(words):
            if word == "--":
                return [*written, *words[i:]]
            before = self._option_string_actions.get(words[i - 1]) if i else None
            if word == "-" and (before is None or before.nargs == 0):
                written.append(self.dash)
            written.append(word)
        return written

    def _parse_optional(self, arg_string: str) -> Any:
        """What a word means; unknown options are refused at once, before anything that is missing
        because of them."""
        option = super()._parse_optional(arg_string)
        first = option[0] if isinstance(option, list) else option  # a list since Python 3.12
        if first is not None and first[0] is None and not self._commands():
            self._refuse_unknown(arg_string)
        return option

    def _get_option_tuples(self, option_string: str) -> Any:
        """An option with its value behind it (`-n8`): neither a part of a longer one's name, nor
        several in one word, nor one of llama.cpp's (`-cnv`), nor a long one that lacks a dash
        (`-ctx`)."""
        long = f"-{option_string.partition('=')[0]}"
        if option_string in FOREIGN or long in self._option_string_actions:
            return []
        return [
            option
            for option in super()._get_option_tuples(option_string)
            if option_string.startswith(option[1]) and option[0].nargs != 0
        ]

    def _refuse_unknown(self, word: str) -> None:
        """End with a suggestion, unless `word` is an option of this parser."""
        flag = word.partition("=")[0]
        known = self._option_string_actions
        if word in ("-", "--") or flag in known:
            return
        near = nearest_option(flag, known)
        if self._commands():
            self._refuse(f"option {shown(flag)}{near or ': other options follow the command'}")
        spelt = flag.replace("_", "-")
        words = ELSEWHERE.get((self._command, spelt), FOREIGN.get(spelt))
        if words and spelt not in known:
            self._refuse(f"{flag}: {words}")
        self._refuse(f"option {shown(flag)}{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices; suggest the nearest one."""
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            kind = str(action.metavar).lower()
            words = COMMANDS_ELSEWHERE.get(value) if kind == "command" else None
            if str(value).endswith(".gguf"):
                words = f"did you mean `{self.prog} run {value}`?"
            advice = f": {words}" if words else nearest(value, action.choices)
            if not advice and kind != "command":
                advice = f", expected {', '.join(action.choices)}"
            self._refuse(f"{kind} {shown(value)}{advice}")
        choices = list(map(str, action.choices))
        near = nearest(str(value), choices)
        raise argparse.ArgumentError(
            action, f"expected {', '.join(choices)}, found {shown(str(value))}{near}"
        )

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        """An option's value; Python before 3.13 takes the one of `--option=--` away, and gives the
        type of a word that is missing its default."""
        if not action.option_strings and not words and action.default is argparse.SUPPRESS:
            return argparse.SUPPRESS
        if not action.option_strings or words != ["--"]:
            return super()._get_values(action, words)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value if action.nargs is None else [value]

    def _print_message(self, message: str, file: Any = None) -> None:
        """Called by `print_help`, `print_usage` and `exit`."""
        if message:
            write = say_lines if file is None or file is sys.stderr else show
            write(message.removesuffix("\n"))


class _HelpAll(argparse._HelpAction):
    """`--help-all`: prints the whole help and ends the program."""

    def __call__(self, parser: Any, *_: object) -> None:
        parser.print_all_help()
        parser.exit()


def build_parser(*commands: str, whole: bool = True) -> Parser:
    """The parser of the program. Imports `commands` alone, and declares only their options; unless
    `whole`, some of them only once they are needed."""
    parser = Parser(
        prog="kvarn",
        description="A GGUF runtime for contexts that do not fit in memory.",
        epilog="Counts may end in K (1024) or M (1048576): --ctx 128K.",
    )
    parser.add_argument("--version", action="version", version=f"kvarn {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, help) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help)
        if name in commands:
            module_of(name).add(subparser)
            if whole:
                subparser.declare_all()
    return parser


def module_of(command: str) -> Any:
    """The module of a command, imported."""
    return import_module(f"..{COMMANDS[command][0]}", __package__)
