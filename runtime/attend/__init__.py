"""Which kept tokens a query reads: the third of the four axes.

`registry` lists the methods, `base` is what each of them has to provide.
"""

from .base import Attend as Attend
from .base import AttendError as AttendError
from .base import BoundAttend as BoundAttend
from .base import LayerView as LayerView
from .registry import ATTENDS as ATTENDS
from .registry import Auto as Auto
from .registry import Full as Full
from .registry import Hash as Hash
from .registry import MagicPig as MagicPig
from .registry import TopK as TopK
from .sparse import Sparse as Sparse
