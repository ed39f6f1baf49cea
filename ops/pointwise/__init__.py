"""Operations on rows and single elements: norms, rope, gated activations, sums, soft caps, splits.

Every result is the same for any number of threads.
"""

from .api import add as add
from .api import add_layer_norm as add_layer_norm
from .api import add_rms_norm as add_rms_norm
from .api import add_row as add_row
from .api import clamped_swiglu as clamped_swiglu
from .api import geglu as geglu
from .api import gelu as gelu
from .api import layer_norm as layer_norm
from .api import multiply_row as multiply_row
from .api import relu_squared as relu_squared
from .api import rms_norm as rms_norm
from .api import rope as rope
from .api import scale as scale
from .api import scale_rows as scale_rows
from .api import sigmoid_gate as sigmoid_gate
from .api import softcap as softcap
from .api import softplus_gate as softplus_gate
from .api import split_pairs as split_pairs
from .api import swiglu as swiglu
