"""The KV cache of a context: where its store, its keep and its attend method meet.

`opening` opens these three, `base` says what happens in each pass; `whole`, `slots` and `scored`
are the kinds of cache: all tokens stay, one is evicted for each new one, or many at once.
"""

from .base import KVCache as KVCache
from .base import close_on_error as close_on_error
from .opening import Axes as Axes
from .opening import open_cache as open_cache
