"""Compiled kernels on disk, for later processes: folders, files, machine code. Imports no Numba."""

from .events import Listener as Listener
from .events import compiling as compiling
from .events import on_compile as on_compile
from .events import tell_not_kept as tell_not_kept
from .files import Counts as Counts
from .files import Damaged as Damaged
from .files import Unlinkable as Unlinkable
from .files import bundle as bundle
from .files import claim as claim
from .files import find as find
from .files import has as has
from .files import keep as keep
from .files import place as place
