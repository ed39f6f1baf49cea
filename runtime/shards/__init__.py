"""One context on several machines: shards hold segments of its pack, and attend to them.

`shard` is one, which needs no model, `answers` what it answers and `serving` its connections.
`method` is the attend method of the process that runs the model, and `head` what that process does.
`part` and `work` are what both compute of their tokens. `frames` draws what they send each other.
"""

from .addresses import Shards as Shards
from .errors import ShardError as ShardError
from .method import Sharded as Sharded
