"""Compiles a bundle's kernels for one CPU, which the environment names: see `kernels`.

Where this machine can run the CPU's code, rehearsals run. For another CPU, launches do nothing: the
results have no meaning, and a rehearsal may end where they are checked. A line says how many did;
the kernels that they would have needed after that are compiled on first use.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ....jit import kernel_cache, variant
from ....jit.bundled import Target
from ....jit.launch import launcher
from ....ops.attention.layout import KV_TYPES
from ....ops.errors import OpsError
from ....system.terminal import say, show
from ...rehearsal import Rehearsal, all_rehearsals, rehearsals
from .kernels import ALL


def _rehearsals(which: str, models: Sequence[Path]) -> Iterator[Rehearsal]:
    f16 = "f16", "f16"
    others = [(name, name) for name in KV_TYPES if name != "f16"]
    for path in models:
        if which == ALL:
            yield from all_rehearsals(path, [f16])
        for kv in others if which == ALL else [f16]:
            yield from rehearsals(path, kv)


def main(which: str, bundled: str, *models: str) -> int:
    """Compile the kernels of these models for one CPU into a folder; runs in its own process."""
    return compile_into(Path(bundled), _rehearsals(which, [Path(model) for model in models]))


def compile_into(bundled: Path, rehearsals: Iterable[Callable[[], None]]) -> int:
    """Rehearse, copy the machine code that was used to a folder, print what was done; the exit
    code: 1 where a kernel could not be kept, since the folder would lack it."""
    is_foreign = not Target(variant.CPU, variant.LISTED).runs_on(variant.host_features())
    if is_foreign:
        launcher.only_compile()
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of numbers without a meaning
    n_ended = 0
    for rehearsal in rehearsals:
        try:
            rehearsal()
        except OpsError:
            if not is_foreign:
                raise
            n_ended += 1
        used = [name for name in kernel_cache.Counts.names if name.endswith(".code")]
        if lost := sorted(name for name in used if not kernel_cache.has([name])):
            say(f"bundling kernels: {lost[0]} was compiled and could not be kept")
            return 1
    n = kernel_cache.Counts.compiled
    show(f"kernels ready, {n} functions compiled now" if n else "kernels ready")
    if n_ended:
        show(
            f"{n_ended} rehearsals ended early, as this machine cannot run them: the kernels that "
            "are left are compiled on first use"
        )
    kernel_cache.bundle(bundled)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
