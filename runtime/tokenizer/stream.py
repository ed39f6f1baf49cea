"""Token ids to text as they come, never half a character."""

import codecs
from collections.abc import Callable


class TokenStream:
    """Turns ids into text one by one; bytes of an unfinished character wait for the next id."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        """The rest: U+FFFD for a character that never ended. The stream starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
