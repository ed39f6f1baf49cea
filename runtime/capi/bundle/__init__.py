"""libkvarn with all that it needs, in a folder that can be moved to other machines.

    bundle(Path("build/bundle"), which=ALL, models=[default_model_path()])

DIR/include, DIR/share, DIR/lib/libkvarn.so, …   as `build` makes them
DIR/lib/libpython3.11.so.1.0                     this Python's library, without its symbol table
DIR/lib/libffi.so.8, …                           what the standard library's modules link to
DIR/lib/python3.11/                              the standard library (`python`)
DIR/lib/python3.11/site-packages/                kvarn and what running needs (`packages`)
DIR/lib/python3.11/site-packages/kvarn/bundled/  kernels compiled ahead (`kernels`), libgomp.so.1
DIR/bin/python3.11                               renders chat templates, in a process of its own
DIR/share/licenses/                              those of all of it
"""

from .bundle import bundle as bundle
from .kernels import ALL as ALL
from .kernels import CHOICES as CHOICES
from .kernels import NONE as NONE
