"""`kvarn route`: one address for several servers of a model.

replicas.py     the servers: which are there, what they have read, how busy they are
proxy.py        passes each request on to one of them
"""

from .proxy import proxy
from .replicas import Replicas

__all__ = ["Replicas", "proxy"]
