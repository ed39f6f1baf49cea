"""Vectors and scores of texts.

embedder.py   what users call: `embed`, `rank`
texts.py      ids of texts and pairs, what is too long, which texts are read together
pooling.py    one vector of a text's hidden states
readers.py    a text encoder, or a model that generates, as what reads texts
loading.py    an embedder of a file
rehearsal.py  a short run, which compiles its kernels
"""

from .embedder import Embedder as Embedder
from .embedder import normalised as normalised
from .pooling import POOLINGS as POOLINGS
