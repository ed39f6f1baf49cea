"""Chooses the next token: filters over candidates, and the chain that joins them.

`Sampler` holds the options, and its `start()` gives the state of one generation. Each step is a
pure function of `candidates`, `filters` or `penalties`. This module does not import NumPy.
"""

from .constraints import Constraint as Constraint
from .errors import NotFinite as NotFinite
from .errors import SamplingError as SamplingError
from .sampler import Sampler as Sampler
