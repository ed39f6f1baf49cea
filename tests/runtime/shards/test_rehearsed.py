"""What `kvarn build` compiles is all that shards and their head need."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
import kvarn
from kvarn.jit import kernel_cache
from kvarn.runtime.attend import Full
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.rehearsal import rehearsals

methods = [kvarn.Hash(), kvarn.TopK(index="flat"), kvarn.TopK()]
if sys.argv[1] == "rehearse":
    for task in rehearsals(default_model_path(), ("f16", "f16"), methods):
        task()
else:
    import threading
    from pathlib import Path
    from kvarn.runtime.shards.serving import ShardServer
    from kvarn.runtime.shards.shard import Shard

    model, pack = kvarn.load(), Path(sys.argv[2])
    server = ShardServer(Shard(pack, 0, 3, alone=True), "127.0.0.1", 0, "", print)
    threading.Thread(target=server.serve, daemon=True).start()
    for method, choice in [(Full(), "all"), *zip(methods, ("all", "all", "each"))]:
        attend = kvarn.Sharded(kvarn.Shards([server.address]), method, choice)
        store = kvarn.Disk(pack, read_only=True)
        with model.context(8192, attend, store=store, prefill=kvarn.Exact()) as context:
            context.prefill(list(range(70)))
            for token in range(3):
                context.decode(token)
print(json.dumps(sorted(kernel_cache.Counts.names)))
"""


def names_of(*words: str) -> set[str]:
    """The kernels that a process has used."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, check=True, text=True
    )
    return {name for name in json.loads(done.stdout.splitlines()[-1]) if name.endswith(".code")}


def test_shards_use_no_kernel_that_was_not_rehearsed(mini_pack: Path) -> None:
    used, rehearsed = names_of("share", str(mini_pack)), names_of("rehearse")
    assert any("nearest" in name for name in used) and not used - rehearsed
