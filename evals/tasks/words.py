"""Tasks that need all of a context: counting frequent words, and repeating passages."""

from random import Random

from . import wording
from .filler import Filler
from .names import ADJECTIVES, NOUNS
from .sample import Part, Question, Sample, begun, fitted
from .wording import worded

SHARES = (0.18, 0.12, 0.08)
"""Share of each frequent word among all words, by rank; the other words share the rest evenly."""
KINDS = 40
"""Different words in a list."""


def frequent(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """A long list of words; a question asks for the three that occur far more often than others.

    They are to be named from the most frequent one on. A second question asks for that one alone.
    """
    vocabulary = rng.sample(sorted({*ADJECTIVES, *NOUNS}), KINDS)
    room = n_chars - len("Words:")
    often, text = fitted(
        rng, lambda n: _list_of(rng, vocabulary, n), max(KINDS, n_chars // 6), KINDS, room
    )
    asked = ((wording.FREQUENT_QUESTIONS, often), (wording.MOST_FREQUENT_QUESTIONS, often[:1]))
    questions = tuple(
        Question(rng.choice(forms), f" {', '.join(words)}.", tuple(words)) for forms, words in asked
    )
    return Sample((Part("Words:", False), Part(text, True)), questions[:n_questions])


def _list_of(rng: Random, vocabulary: list[str], n: int) -> tuple[list[str], str]:
    """The frequent words, and at most n words in random order, each of them in its share."""
    counts = [round(share * n) for share in SHARES]
    others = len(vocabulary) - len(counts)
    counts += [max(1, (n - sum(counts)) // others)] * others
    words = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
    rng.shuffle(words)
    return vocabulary[: len(SHARES)], "".join(f" {word}" for word in words)


def copy(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Filler alone; a question gives the first words of a sentence and asks how it goes on."""
    sentences: list[str] = []
    for sentence in filler.sentences(rng):
        n_chars -= len(sentence)
        if n_chars < 0 and sentences:
            break
        sentences.append(sentence)
    long = [s.split() for s in dict.fromkeys(sentences) if len(s.split()) >= 10]
    starts: dict[str, list[list[str]]] = {}
    for words in long:
        starts.setdefault(" ".join(words[:5]), []).append(words)
    asked = [sentence for sentence, *others in starts.values() if not others]
    questions = []
    for words in rng.sample(asked, min(n_questions, len(asked))):
        goes_on = " ".join(words[5:13])
        asking = worded(rng, wording.COPY_QUESTIONS, x=" ".join(words[:5]))
        questions.append(Question(asking, " " + goes_on, (goes_on,)))
    return Sample(begun([Part("".join(sentences), True)]), tuple(questions))
