"""Tasks that read all of a context: words that come often, and passages to be repeated."""

import random

from . import wording
from .filler import Filler
from .names import ADJECTIVES, NOUNS
from .sample import Part, Question, Sample, begun

OFTEN = 3
"""Words asked for."""
SHARE = 0.12
"""Of all words, how many each of the frequent ones is; the others share the rest evenly."""


def frequent(rng: random.Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """A long list of words of which three come far more often than the others."""
    vocabulary = rng.sample(sorted({*ADJECTIVES, *NOUNS}), 40)
    often, others = vocabulary[:OFTEN], vocabulary[OFTEN:]
    words: list[str] = []
    room = n_chars - len("Words:")
    while True:
        word = rng.choice(often) if rng.random() < OFTEN * SHARE else rng.choice(others)
        room -= len(word) + 1
        if room < 0 and words:
            break
        words.append(word)
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    ranked = sorted(counts, key=lambda word: -counts[word])[:OFTEN]
    context = (Part("Words:", False), Part("".join(f" {word}" for word in words), False))
    form = rng.choice(wording.FREQUENT_QUESTIONS)
    reply = " " + ", ".join(ranked) + "."
    return Sample(context, (Question(form, reply, tuple(ranked)),))


def copy(rng: random.Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
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
    asked = [found[0] for found in starts.values() if len(found) == 1]
    questions = []
    for words in rng.sample(asked, min(n_questions, len(asked))):
        goes_on = " ".join(words[5:13])
        form = rng.choice(wording.COPY_QUESTIONS).format(x=" ".join(words[:5]))
        questions.append(Question(form, " " + goes_on, (goes_on,)))
    return Sample(begun([Part("".join(sentences), True)]), tuple(questions))
