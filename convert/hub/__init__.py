"""Pulling models from a hub, by the conventions of huggingface_hub.

kvarn uses its caches, tokens, environment and offline mode. It has its own requests and checks,
because the library neither bounds the time of an answer nor compares files with their checksums.
"""

from .choose import RepositoryFile as RepositoryFile
from .choose import choose as choose
from .pull import PullResult as PullResult
from .pull import find_pulled as find_pulled
from .pull import pull as pull
