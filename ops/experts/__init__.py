"""Routed experts: each token chooses some of many feed-forwards, and adds up what they give.

`route` chooses and sorts tokens by expert; `rows` (few tokens) and `panels` (many) multiply by the
chosen experts' matrices with the arithmetic of `ops.linear`; `combine` has what is between them.
"""

from .routing import MOST_EXPERTS as MOST_EXPERTS
from .routing import Routing as Routing
from .weights import ExpertMatrix as ExpertMatrix
from .weights import ExpertWeights as ExpertWeights
