"""Low-rank adapters beside a matrix: y += B (A x), A and B thin (`api`).

`thin` has the matrices as numbers of 20 bits, `kernels` the two products, `arguments` what they
work on.
"""

from .api import LowRankScratch as LowRankScratch
from .api import add_low_rank as add_low_rank
from .thin import LowRank as LowRank
from .thin import thin_bytes as thin_bytes
