"""Pulling models from a hub, by the conventions of huggingface_hub.

Its caches, tokens, environment and offline mode; what is chosen, checked and said is kvarn's.
"""

from .choose import Listed, choose
from .pull import Pulled, pull, pulled_before

__all__ = ["Listed", "Pulled", "choose", "pull", "pulled_before"]
