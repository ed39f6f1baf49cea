"""Recognises a pre-tokenizer by how it cuts a text, where no table of hashes knows the vocabulary.

Hashes are of ids, so they change with the vocabulary: a model that was made with another one and
the rules of a known family has none. What the rules do to a text does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....runtime.tokenizer.pretokenizers import PRE_TOKENIZERS
from ....runtime.tokenizer.split import split_words
from .pretokenizers import NAMES

# Where families differ: case, contractions, runs of digits, scripts, line ends, punctuation; marks.
PROBES = (
    "HTTPServer aBc I'M you'LL he's 'rest 'RE x'dog don't\r\n\r\n  1234567 12 333 3.14 v2.0"
    " a/b//\n/c $x_y #tag(foo) [a]{b} a1b2 \t\tx   y\n\n  z word.\n word!\r\n... ----==== ?????"
    " \n   \n    \n カタカナ ひらがな 漢字かな 한국어 ㄱㄴ ㄅㄆ （全角）， “q”…— x²½ Ⅷ ١٢٣٤"
    " нещо на Български 我想在apple工作1314151天～ <sentinel:1> IMGIMGAZ +=<>^|~` 🚀 tail   ",
    "e\u0301 नमस्ते हिन्दी ភាសា ไทย cafe\u0301s",
)
_WITHOUT_MARKS = ("gpt-4o",)
"""Families whose models take marks for parts of words, where llama.cpp's rules, and so kvarn's, do
not: they cut the last probe otherwise."""


def name_of(
    cuts: Sequence[Sequence[tuple[int, int]]], ignore_merges: bool, adds_bos: bool
) -> str | None:
    """The first known family that cuts `PROBES` so; None where there is none, or no defaults fit.

    cuts: first and stop of each word of each probe. ignore_merges: as tokenizer.json says.
    adds_bos: whether the tokenizer puts a token before a text. A family that adds one where a file
    is silent does not fit a tokenizer that adds none.
    """
    words = [[text[first:stop] for first, stop in spans] for text, spans in zip(PROBES, cuts)]
    if any("".join(parts) != text for text, parts in zip(PROBES, words)):
        return None
    for name, rules in PRE_TOKENIZERS.items():
        fits = rules.byte_level and rules.ignore_merges == ignore_merges
        if name not in NAMES or not fits or (rules.add_bos and not adds_bos):
            continue
        n = len(PROBES) - (name in _WITHOUT_MARKS)
        if [split_words(text, rules.steps) for text in PROBES[:n]] == words[:n]:
            return name
    return None
