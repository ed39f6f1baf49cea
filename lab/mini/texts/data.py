"""Text files to rows of token ids: cleaning, the tokenizer, the split, the order of rows."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS = "<s>", "</s>"
N_CONTROL = 2
"""Control tokens, which have the first ids."""
PRE_TOKENIZER = "smollm"
"""llama.cpp's name of what `new_tokenizer` does: digits one by one, then GPT-2's pattern."""
VALIDATION_SHARE = 0.05
_ASCII = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "–": "-", "…": "..."})
_SENTENCE_END = re.compile(r"[.!?]")


def paragraphs(text: str) -> list[str]:
    """Paragraphs of a plain-text book, one line each, with ASCII quotes and single spaces.

    A book whose lines are rarely longer than 90 characters is hard-wrapped: there a paragraph ends
    at a blank line or, in books without blank lines, at a line shorter than 3/4 of the usual width.
    """
    lines = [line.rstrip() for line in text.translate(_ASCII).splitlines()]
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return []
    width = lengths[int(0.95 * (len(lengths) - 1))]
    blank_separated = sum(not line for line in lines) > len(lines) / 20
    found: list[str] = []
    current: list[str] = []
    for line in lines:
        if line:
            current.append(line)
        ends = width > 90 or not line or (not blank_separated and len(line) < 0.75 * width)
        if ends and current:
            found.append(" ".join(" ".join(current).split()))
            current = []
    if current:
        found.append(" ".join(" ".join(current).split()))
    return found


def words_per_sentence(text: str) -> float:
    """Mean length of a sentence in words: a plain measure of how old or heavy a style is."""
    return len(text.split()) / max(1, len(_SENTENCE_END.findall(text)))


@dataclass(frozen=True)
class Book:
    """One file's cleaned text: its first 95% to train on, its end to validate on."""

    name: str
    train: str
    validation: str


def read_books(folder: Path, max_words_per_sentence: float) -> list[Book]:
    """Every *.txt of the folder in name order, but those with longer sentences on average."""
    books = []
    for path in sorted(folder.glob("*.txt")):
        parts = paragraphs(path.read_text(encoding="utf-8", errors="replace"))
        if words_per_sentence(" ".join(parts)) > max_words_per_sentence:
            continue
        ends = np.cumsum([len(p) + 1 for p in parts])
        cut = int(np.searchsorted(ends, (1 - VALIDATION_SHARE) * ends[-1]))
        books.append(Book(path.stem, "\n".join(parts[:cut]), "\n".join(parts[cut:])))
    if not books:
        raise SystemExit(f"reading texts: no usable *.txt in {folder}")
    return books


def new_tokenizer(texts: list[str], n_vocab: int) -> Tokenizer:
    """Byte-level BPE trained on texts, digits apart; `<s>` is 0 and `</s>` is 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the tokenizer has."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"reading a tokenizer: it has no token {token!r}")
    return int(found)


Ids = NDArray[np.uint16]


@dataclass(frozen=True)
class Corpus:
    """Token ids of all books on end (`</s>` after each) and the number of bytes they stand for."""

    ids: Ids
    n_bytes: int

    @classmethod
    def encode(cls, tokenizer: Tokenizer, texts: list[str]) -> "Corpus":
        eos = [token_id(tokenizer, EOS)]
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array(e.ids + eos, np.uint16) for e in encoded]
        return cls(np.concatenate(ids), sum(len(t.encode()) for t in texts))
