"""One context on several machines: shards hold segments of its pack, and attend to them.

`serving` is a shard, which needs no model; `method` the attend method of the process that runs the
model, the head. `frames` draws what they send each other.
"""

from .addresses import Shards as Shards
from .errors import ShardError as ShardError
from .method import Sharded as Sharded
