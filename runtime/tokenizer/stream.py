"""Decodes token ids one by one, to whole characters only."""

import codecs
from collections.abc import Callable


class TokenStream:
    """Decodes ids one by one; bytes of an unfinished character wait for the next id."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        """The rest of the text, U+FFFD for an unfinished character. Resets the stream."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
