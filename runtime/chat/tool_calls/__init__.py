"""Calls of tools and reasoning in an answer, read while it comes; and constraints to write them.

    parser.py      parser_for: the template's format, and the parser that streams
    constraint.py  constraint_for: a call that is required, or well formed where it begins
    formats/       how models write calls, one file each
    events.py      what a parser says
    source.py, reading.py, json_text.py, tools.py, reasoning.py, lark.py   what formats are made of

Nothing here imports NumPy or kernels: the HTTP process reads answers.
"""

from .constraint import after_reasoning as after_reasoning
from .constraint import constraint_for as constraint_for
from .events import CallArguments as CallArguments
from .events import CallBegins as CallBegins
from .events import CallEnds as CallEnds
from .events import Event as Event
from .events import ReasoningPiece as ReasoningPiece
from .events import TextPiece as TextPiece
from .parser import Parser as Parser
from .parser import Plain as Plain
from .parser import StreamParser as StreamParser
from .parser import parser_for as parser_for
