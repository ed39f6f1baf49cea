"""The tokenizer of a GGUF file: its vocabulary's rules, special tokens, BOS and EOS."""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from ..gguf import open_gguf
from .bpe import CHARACTER_TO_BYTE, BytePair
from .rendered import ControlTexts, Rendered, Span
from .special import Partition, find_roles, set_stripping
from .spm import SPACE, SentencePiece
from .unigram import Unigram
from .vocab import HIDDEN, Attr, TokenizerError, Vocab
from .wordpiece import WordPiece

_NAME_LENGTH = 1000
_AS_STORED = HIDDEN | Attr.USER_DEFINED


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


class Engine(Protocol):
    """Ids of text without special tokens, by one family of vocabularies."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""

    def encode_raw(self, raw: bytes) -> list[int]:
        """Ids of bytes that are not UTF-8."""


_ENGINES: Mapping[str, Callable[[Vocab], Engine]] = {
    "spm": SentencePiece,
    "bpe": BytePair,
    "wordpiece": WordPiece,
    "unigram": Unigram,
}


class Tokenizer:
    """Text to ids and back, with llama.cpp's ids.

    n_vocab: number of tokens. model, pre: `tokenizer.ggml.model` and `.pre` of the file, "" where
    there is none. add_bos, add_eos: whether `encode(bos=True)` begins with BOS and ends with EOS.
    add_sep: whether SEP stands before the second text of a pair.
    roles: ids of the special tokens: bos eos eot eom unk sep pad mask fim_pre fim_suf fim_mid …;
    bos_id and eos_id are two of them, or None. eog_ids: the tokens that end generation.
    """

    def __init__(self, vocab: Vocab, name: str = "", architecture: str = "") -> None:
        self._vocab = vocab
        self._engine: Engine = _ENGINES[vocab.kind](vocab)
        self.eog_ids = find_roles(vocab)
        self.n_vocab = vocab.n_vocab
        self.model, self.pre = vocab.model, vocab.pre
        self.add_bos, self.add_eos, self.add_sep = vocab.add_bos, vocab.add_eos, vocab.add_sep
        self.roles: Mapping[str, int] = vocab.roles
        self.bos_id, self.eos_id = vocab.roles.get("bos"), vocab.roles.get("eos")
        special = vocab.special()
        set_stripping(vocab, special, name, architecture)
        self._special, self._partition = special, Partition(vocab, special)
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Read the `tokenizer.ggml.*` keys of a GGUF file. Raises TokenizerError if unsound."""
        name, architecture = (metadata.get(f"general.{k}") for k in ("name", "architecture"))
        return cls(Vocab(metadata), _start_of(name), _start_of(architecture))

    @cached_property
    def control(self) -> ControlTexts:
        """The texts of control tokens, which `encode` finds only on request."""
        vocab = self._vocab
        return ControlTexts(vocab.tokens[i] for i in self._special if vocab.attr(i) & HIDDEN)

    def id_of(self, text: str) -> int | None:
        """The token with this text in the file, if there is one."""
        return self._vocab.ids.get(text)

    def text_of(self, token: int) -> str:
        """The token's text in the file."""
        return self._vocab.tokens[self._check(token)]

    def attr(self, token: int) -> Attr:
        """The kind of a token: normal, control, user-defined, byte, ..."""
        return self._vocab.attr(self._check(token))

    def encode(self, text: str | bytes, bos: bool = False, special: bool = False) -> list[int]:
        """Ids of a text.

        text: str, or any bytes. bos: add the tokens that the file asks for around a text: BOS if
        `add_bos`, EOS if `add_eos`, CLS and SEP for WordPiece. special: recognise control tokens
        that stand in the text and are not quoted (`Rendered`); else read them as plain text.
        User-defined tokens are always recognised.
        """
        quoted = _quoted(text) if isinstance(text, Rendered) else ()
        text, valid = _as_text(text)
        vocab = self._vocab
        wordpiece = vocab.kind == "wordpiece"
        ids = [self._role("bos")] if bos and (vocab.add_bos or wordpiece) else []
        after_special = True
        for fragment in self._partition.cut(text, special, quoted):
            if isinstance(fragment, int):
                ids.append(fragment)
                after_special = True
            else:
                ids += self._encode_plain(fragment, valid, after_special)
                after_special = False
        if bos and wordpiece:
            ids.append(self._role("sep"))
        elif bos and vocab.add_eos:
            ids.append(self._role("eos"))
        return ids

    def _encode_plain(self, text: str, valid: bool, after_special: bool) -> list[int]:
        """Ids of the text between special tokens."""
        vocab = self._vocab
        if vocab.kind == "spm":
            if vocab.remove_extra_whitespaces:  # SentencePiece's rule; llama.cpp has none
                text = " ".join(filter(None, text.split(" ")))
            if text and after_special and vocab.add_space_prefix:
                text = " " + text
        if valid:
            return self._engine.encode(text)
        return self._engine.encode_raw(text.encode("utf-8", "surrogateescape"))

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of ids; U+FFFD for bytes that are not UTF-8. See `decode_bytes`."""
        return self.decode_bytes(ids, special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], special: bool = False) -> bytes:
        """The bytes of ids. Control tokens are written out if `special`, else left out.

        The space that a SentencePiece vocabulary puts before a text is removed. For WordPiece,
        spaces before punctuation are removed as in llama.cpp.
        """
        pieces = [self._shown(token, special) for token in ids]
        if pieces and self._vocab.add_space_prefix:
            pieces[0] = pieces[0].removeprefix(b" ")
        text = b"".join(pieces)
        return _tidy(text) if self._vocab.kind == "wordpiece" else text

    def stream(self, special: bool = False) -> TokenStream:
        """Decodes ids one by one; unlike `decode`, keeps a leading space."""
        return TokenStream(lambda token: self._shown(token, special))

    def piece(self, token: int) -> bytes:
        """The bytes that one token stands for; a control token's are its spelling."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._make_piece(self._check(token))
        return piece

    def _shown(self, token: int, special: bool) -> bytes:
        piece = self.piece(token)
        return b"" if not special and self._vocab.attr(token) & HIDDEN else piece

    def _make_piece(self, token: int) -> bytes:
        text, attr = self._vocab.tokens[token], self._vocab.attr(token)
        if attr & _AS_STORED:
            return text.encode("utf-8", "surrogateescape")
        if attr & Attr.NORMAL:
            if self._vocab.kind != "bpe" or self._vocab.pre_tokenizer.escape_spaces:
                return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")
            return _from_byte_alphabet(text)
        if attr & Attr.BYTE and re.fullmatch("<0x[0-9A-Fa-f]{2}>", text):
            return bytes([int(text[3:5], 16)])
        return b""

    def _role(self, role: str) -> int:
        token = self._vocab.roles.get(role)
        if token is None:
            raise TokenizerError(f"the file asks for {role.upper()} tokens but names none")
        return token

    def _check(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(
                f"decoding tokens: id {token} is outside the vocabulary (0 to {self.n_vocab - 1})"
            )
        return int(token)


def _start_of(name: object) -> str:
    """The first characters of a name; "" for a value that is not text."""
    return name[:_NAME_LENGTH] if isinstance(name, str) else ""


def load_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file; TokenizerError or GGUFError where it cannot be read."""
    with open_gguf(Path(path)) as file:
        try:
            return Tokenizer.from_metadata(file.metadata)
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from error


def _as_text(text: str | bytes) -> tuple[str, bool]:
    """The text and True; for bytes that are not UTF-8, surrogate escapes and False."""
    if isinstance(text, str):
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raw = _lone_surrogates(text)
        else:
            return text, True
    else:
        raw = text
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape"), False


def _quoted(text: Rendered) -> Sequence[Span]:
    """The quoted spans in the text that `_as_text` makes of it."""
    if _as_text(text)[0] is text:
        return text.quoted
    length = {i: len(_as_text(text[:i])[0]) for span in text.quoted for i in span}
    return [(length[start], length[stop]) for start, stop in text.quoted]


def _lone_surrogates(text: str) -> bytes:
    """The bytes that surrogates from the operating system stand for; others encoded as they are."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _from_byte_alphabet(text: str) -> bytes:
    try:
        return bytes(map(CHARACTER_TO_BYTE.__getitem__, text))
    except KeyError:  # a character outside the alphabet; spelt as llama.cpp shows it
        stored = text.encode("utf-8", "surrogateescape")
        return b"".join(
            bytes([CHARACTER_TO_BYTE[c]])
            if c in CHARACTER_TO_BYTE
            else b"[UNK_BYTE_0x"
            + c.encode("utf-8", "surrogateescape").hex().encode()
            + stored
            + b"]"
            for c in text
        )


def _tidy(text: bytes) -> bytes:
    """Remove spaces before ? ! . , around a lone apostrophe, and before 's 'm 're 've."""
    text = re.sub(rb" (?=[?!.,])", b"", text)
    text = re.sub(rb" ' ", b"'", text)
    return re.sub(rb" (?='(?:[sm]|re|ve))", b"", text)
