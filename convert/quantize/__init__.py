"""Encoders of quantised types, and GGUF files with other types than before."""

from .encode import ENCODABLE as ENCODABLE
from .encode import EncodeError as EncodeError
from .encode import encode as encode
