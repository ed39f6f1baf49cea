"""libkvarn with all that it needs, in a folder that can be moved to other machines.

    bundle(Path("build/bundle"), which=ALL, models=[default_model_path()])

DIR/include, DIR/share, DIR/lib/libkvarn.so, …   as `build` makes them
DIR/lib/libpython3.11.so.1.0                     this Python's library, without its symbol table
DIR/lib/libffi.so.8, …                           libraries that the standard library links to
DIR/lib/python3.11/                              the standard library (`python`)
DIR/lib/python3.11/site-packages/                kvarn and the packages it imports (`packages`)
DIR/lib/python3.11/site-packages/kvarn/bundled/  kernels compiled ahead (`kernels`), libgomp.so.1
DIR/bin/python3.11                               renders chat templates, in a process of its own
DIR/share/licenses/                              the licences of all parts
"""

from .bundle import bundle as bundle
from .kernels import ALL as ALL
from .kernels import CHOICES as CHOICES
from .kernels import NONE as NONE
from .kernels import X86 as X86
from .kernels import for_all_targets as for_all_targets
from .rehearse import compile_into as compile_into
