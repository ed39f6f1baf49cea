"""Operations of layers that carry a state from token to token: gated delta rule, short convolution.

Every result, the state's included, is the same for any number of threads, and however a text is cut
into calls: tokens that are read one by one give the bits of all at once.
"""

from .api import DeltaScratch as DeltaScratch
from .api import gated_delta_rule as gated_delta_rule
from .api import gated_rms_norm as gated_rms_norm
from .api import gated_short_conv as gated_short_conv
from .api import short_conv as short_conv
from .layout import DeltaHeads as DeltaHeads
