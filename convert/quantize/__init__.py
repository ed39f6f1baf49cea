"""Encoders of quantised types, and GGUF files with other types than before."""

from .encode import ENCODABLE, EncodeError, encode

__all__ = ["ENCODABLE", "EncodeError", "encode"]
