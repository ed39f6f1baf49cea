"""Special tokens: their roles, which of them end generation, and where they occur in a text.

GGUF files name only a few special tokens. llama.cpp finds the others by their text, as kvarn does.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .rendered import Span
from .vocab import HIDDEN, Attr, Vocab

# Tokens by role, for roles to which the file assigns none (llama.cpp's lists).
ROLE_TEXTS: Mapping[str, list[str]] = {
    role: texts.split()
    for role, texts in {
        "eot": "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> "
        "_<EOT> [EOT] <｜end▁of▁sentence｜> <end_of_utterance>",
        "eom": "<|eom_id|>",
        "fim_pre": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> "
        "<|code_prefix|> <|prefix|>",
        "fim_suf": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> "
        "<|code_suffix|> <|suffix|>",
        "fim_mid": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> "
        "<|code_middle|> <|middle|>",
        "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
        "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
        "fim_sep": "<|file_sep|>",
    }.items()
}
EOG_TEXTS = (
    *ROLE_TEXTS["eot"],
    *"<|return|> <|call|> <|flush|> <|calls|> </s> <|eom_id|> [EOS] <eos> <turn|>".split(),
    *"<|tool_response> [e~[".split(),
)
# Harmony's channel marks: they structure the output, and are shown in it.
_SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_SPACES = " \t\n\v\f\r"


def find_roles(vocab: Vocab) -> frozenset[int]:
    """Complete roles and attributes by the tokens' texts; return the ids that end generation."""
    for role, texts in ROLE_TEXTS.items():
        text = next((text for text in texts if text in vocab.ids), None)
        if role not in vocab.roles and text is not None:
            vocab.roles[role] = vocab.ids[text]
            _add_attr(vocab, text, Attr.CONTROL)
    roles = ("fim_pad", "fim_rep", "fim_sep")
    ends = {vocab.roles[role] for role in roles if role in vocab.roles}
    for text in EOG_TEXTS:
        if text in vocab.ids:
            ends.add(vocab.ids[text])
            _add_attr(vocab, text, Attr.CONTROL)
    for text in _SHOWN_TEXTS:
        if text in vocab.ids:
            vocab.set_attr(vocab.ids[text], Attr.USER_DEFINED)
    ends.update(vocab.roles[role] for role in ("eos", "eot", "eom") if role in vocab.roles)
    _drop_false_ends(vocab, ends)
    return frozenset(ends)


def _drop_false_ends(vocab: Vocab, ends: set[int]) -> None:
    """`<|end|>` and `</s>` do not end generation in vocabularies with certain other ends."""
    texts = {vocab.tokens[i]: i for i in ends}
    calls = "<|call|>" in texts or "<|calls|>" in texts
    if calls and ("<|return|>" in texts or "<|flush|>" in texts) and "<|end|>" in texts:
        ends.discard(texts["<|end|>"])
        vocab.set_attr(texts["<|end|>"], Attr.USER_DEFINED)
    if ("<|tool_response>" in texts or "<|plamo:eos|>" in texts) and "</s>" in texts:
        ends.discard(texts["</s>"])
        vocab.set_attr(texts["</s>"], Attr.NORMAL)


def set_stripping(vocab: Vocab, special: Iterable[int], name: str, architecture: str) -> None:
    """Mark the tokens that absorb white space beside them, which only a model's name tells."""
    if any(pre in vocab.pre for pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        known in architecture for known in ("nomic-bert-moe", "jina-bert-v3")
    ):
        _add_attr(vocab, "<mask>", Attr.LSTRIP)
    elif "phi-3" in name.lower() or "phi3" in name.lower():
        for token in special:
            vocab.set_attr(token, vocab.attr(token) | Attr.RSTRIP)
        _add_attr(vocab, "</s>", Attr.RSTRIP)
        for text in ("<unk>", "<s>", "<|endoftext|>"):
            if text in vocab.ids:
                token = vocab.ids[text]
                vocab.set_attr(token, vocab.attr(token) & ~Attr.RSTRIP)
    elif "modern-bert" in name.lower():
        _add_attr(vocab, "[MASK]", Attr.LSTRIP)


def _add_attr(vocab: Vocab, text: str, attr: Attr) -> None:
    if text in vocab.ids:
        token = vocab.ids[text]
        vocab.set_attr(token, vocab.attr(token) | attr)


class Partition:
    """Cuts a text at its special tokens: the longest token first, each from left to right."""

    def __init__(self, vocab: Vocab, special: Iterable[int]) -> None:
        texts = self._texts = vocab.tokens
        self._attr = vocab.attr
        ids = np.fromiter(special, np.int32)
        lengths = [len(texts[i].encode("utf-8", "surrogateescape")) for i in ids.tolist()]
        self._ids = ids[np.argsort(lengths, kind="stable")[::-1]]
        # Most vocabularies have thousands of special tokens and few beginnings: "<|", "[", "\n\n".
        self._starts = {texts[i][:2] for i in ids.tolist()}

    def cut(self, text: str, special: bool, quoted: Sequence[Span] = ()) -> list[str | int]:
        """Pieces of text, none empty, and the ids of the special tokens between them, in order.

        User-defined tokens are always found; control and unknown tokens where `special` is set and
        none of their characters is `quoted`.
        """
        fragments: list[Span | int] = [(0, len(text))] if text else []
        starts = {start for start in self._starts if start in text}
        for token in self._ids.tolist() if starts else ():
            spelling = self._texts[token]
            if spelling[:2] not in starts or spelling not in text:
                continue
            attr = self._attr(token)
            if not special and attr & HIDDEN:
                continue
            barred = quoted if attr & HIDDEN else ()
            pieces: list[Span | int] = []
            for fragment in fragments:
                if isinstance(fragment, int):
                    pieces.append(fragment)
                else:
                    pieces += _cut_span(text, fragment, token, spelling, attr, barred)
            fragments = pieces
        return [piece if isinstance(piece, int) else text[slice(*piece)] for piece in fragments]


def _cut_span(
    text: str, span: Span, token: int, spelling: str, attr: Attr, barred: Sequence[Span]
) -> list[Span | int]:
    """A span of the text, cut at one token."""
    pieces: list[Span | int] = []
    start, stop = span
    search = start
    while (place := text.find(spelling, search, stop)) >= 0:
        after = place + len(spelling)
        if _overlaps(barred, place, after):
            search = place + 1
            continue
        while attr & Attr.LSTRIP and place > start and text[place - 1] in _SPACES:
            place -= 1
        while attr & Attr.RSTRIP and after < stop and text[after] in _SPACES:
            after += 1
        pieces += [(start, place), token] if start < place else [token]
        start = search = after
    return [*pieces, (start, stop)] if start < stop else pieces


def _overlaps(spans: Sequence[Span], start: int, stop: int) -> bool:
    """Whether a character of start … stop - 1 is in one of the spans."""
    before = bisect_left(spans, (stop,))
    return before > 0 and spans[before - 1][1] > start
