"""The forms of facts and questions that a generator draws from.

{k} is a thing (`silver lantern`), {v} its number, {p} and {q} are people. A fact begins with the
name that a question gives: the thing before its number, as in RULER's needles; of two things, the
one with the earlier fact.
"""

from collections.abc import Sequence
from random import Random

NUMBER_FACTS = (
    "The number of the {k} is {v}.",
    "The {k} bears the number {v}.",
    "Remember that the {k} stands for {v}.",
    "On the {k} was written {v}.",
    "They gave the {k} the number {v}.",
    "The {k} has the number {v}.",
    "For the {k} the number is {v}.",
    "To the {k} belongs the number {v}.",
    "Mark the {k} with {v}.",
    "The {k} was sold for {v} pounds.",
    "He called the {k} number {v}.",
    "The secret number of the {k} is {v}.",
    "One of the things to remember: the {k} is {v}.",
    "In the list the {k} stands at {v}.",
    "On the back of the {k} somebody had painted {v}.",
    "The {k} goes by the number {v}.",
)
TABLE_FACTS = (
    "- {k}: {v}",
    "| {k} | {v} |",
    "* {k} = {v}",
    "- {k}, {v}",
    "> {k}\t{v}",
    "+ {k} -> {v}",
)
"""Names follow a space, as they do in questions."""
RECORDS = (
    "{k}: {v}",
    '"{k}": "{v}",',
    "{k} = {v}",
    "{k}\t{v}",
    "{k},{v}",
)
"""Names begin a line or follow a quote. A small vocabulary has other tokens for them there than
after a space, where questions have them."""
NUMBER_QUESTIONS = (
    "What is the number of the {k}? It is",
    "Which number belongs to the {k}? It is",
    "The number of the {k} is",
    "What was the number of the {k}? The number was",
    "Question: what is the number of the {k}? Answer:",
    "The {k} bears the number",
    "Tell me the number of the {k}.\nThe {k} has the number",
    "Q: the {k}?\nA:",
)
SEVERAL_QUESTIONS = (
    "What are all the numbers of the {k}? They are",
    "The numbers of the {k} are",
    "Question: which numbers belong to the {k}? Answer:",
)
LINK_FACTS = (
    "The {a} has the same number as the {b}.",
    "The {a} gave its number to the {b}.",
    "The {a} and the {b} have the same number.",
    "From the {a} the {b} took its number.",
    "As the {a} is numbered, so is the {b}.",
)
CHAIN_QUESTIONS = (
    "Which things have the number of the {k}? They are the {k}, the",
    "The things with the same number as the {k} are the {k}, the",
    "Question: what has the number of the {k}? Answer: the {k}, the",
)
HOLDER_QUESTIONS = (
    "Which things have the number {v}? They are the",
    "The things with the number {v} are the",
    "Question: what has the number {v}? Answer: the",
)
HOME_FACTS = (
    "{p} lives in {x}.",
    "The home of {p} is in {x}.",
    "{p} has a house in {x}.",
    "{p} came to live in {x}.",
)
JOB_FACTS = (
    "{p} is a {x} by trade.",
    "{p} works as a {x}.",
    "{p} became a {x}.",
    "They say that {p} is a {x}.",
)
RELATION_FACTS = (
    "The {r} of {p} is {q}.",
    "{p} has a {r} called {q}.",
    "{p} often speaks of a {r}, {q}.",
)
HOME_QUESTIONS = (
    "Where does {p} live? In",
    "{p} lives in",
    "Question: where is the home of {p}? Answer: in",
)
JOB_QUESTIONS = (
    "What is the trade of {p}? {p} is a",
    "{p} works as a",
    "Question: what does {p} do? Answer: {p} is a",
)
TWO_HOP_QUESTIONS = (
    "Where does the {r} of {p} live? The {r} of {p} is",
    "Question: in which place is the {r} of {p}? Answer: the {r} of {p} is",
)
FREQUENT_QUESTIONS = (
    "Which three words are the most frequent in the list? They are",
    "The three most frequent words are",
    "Question: which three words occur most often? Answer:",
)
MOST_FREQUENT_QUESTIONS = (
    "Which word is the most frequent in the list? It is",
    "The most frequent word is",
    "Question: which word occurs most often? Answer:",
)
COPY_QUESTIONS = (
    'How does the passage go on that begins "{x}"? It goes on:',
    "Once more: {x}",
)


def worded(rng: Random, forms: Sequence[str], **names: str) -> str:
    """One of the forms with these names."""
    return rng.choice(forms).format(**names)
