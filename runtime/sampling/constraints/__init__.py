"""What an answer must match: a JSON schema, a regular expression or a grammar, by llguidance.

    form.py         `Form`: what is asked for, unchecked, as messages carry it
    constraint.py   `Constraint`: what a user asks for, checked when it is made
    lark.py         texts of markers and of free text in Lark grammars
    grammar.py      a constraint as a grammar of llguidance
    vocabulary.py   a tokenizer as llguidance's
    matcher.py      the state of one answer: a mask for each token
    triggers.py     text before a trigger, whose masks are kept

Only `matcher` needs NumPy; llguidance is imported where a constraint is made.
"""

from .constraint import Constraint as Constraint
