"""What `kvarn build` compiles is all that shards and their head need."""

import json
import subprocess
import sys
from pathlib import Path

METHODS = """
import json, sys
import kvarn
from kvarn.jit import kernel_cache
from kvarn.runtime.attend import Full

methods = [kvarn.Hash(), kvarn.TopK(index="flat"), kvarn.TopK()]
"""
NAMES = "print(json.dumps(sorted(kernel_cache.Counts.names)))"
REHEARSE = """
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.rehearsal import rehearsals

for task in rehearsals(default_model_path(), ("f16", "f16"), methods):
    task()
"""
SHARD = """
import threading
from pathlib import Path
from kvarn.runtime.shards.serving import ShardServer
from kvarn.runtime.shards.shard import Shard

server = ShardServer(Shard(Path(sys.argv[1]), 0, 3, alone=True), "127.0.0.1", 0, "", print)
threading.Thread(target=server.serve, daemon=True).start()
print(server.address, flush=True)
sys.stdin.read()
"""
HEAD = """
for method, choice in [(Full(), "all"), *zip(methods, ("all", "all", "each"))]:
    attend = kvarn.Sharded(kvarn.Shards([sys.argv[2]]), method, choice)
    store = kvarn.Disk(sys.argv[1], read_only=True)
    with kvarn.load().context(8192, attend, store=store, prefill=kvarn.Exact()) as context:
        context.prefill(list(range(70)))
        for token in range(3):
            context.decode(token)
"""


def started(program: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", METHODS + program + NAMES, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names_of(process: subprocess.Popen[str]) -> set[str]:
    """The kernels that a process has used, when it has ended."""
    printed, _ = process.communicate()
    assert not process.returncode
    return {name for name in json.loads(printed.splitlines()[-1]) if name.endswith(".code")}


def test_shards_use_no_kernel_that_was_not_rehearsed(mini_pack: Path) -> None:
    with started(SHARD, str(mini_pack)) as shard:
        assert shard.stdout is not None
        head = names_of(started(HEAD, str(mini_pack), shard.stdout.readline().strip()))
        used = head | names_of(shard)
    rehearsed = names_of(started(REHEARSE))
    assert any("nearest" in name for name in used) and not used - rehearsed
