"""What constraints cost: `python -m lab.masks MODEL.gguf` times the mask of each token of answers.

Answers are drawn from random logits, so they hold what a model seldom says: text of all scripts,
half characters, rare tokens. A mask is that of llguidance and the pass over the vocabulary which
makes it a list of ids (`Matcher.allowed`). Times are CPU time of the one thread that computes it,
as other programs may run. The file may be a vocabulary alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kvarn.ops.arrays import F64
from kvarn.runtime.sampling import Constraint
from kvarn.runtime.sampling.constraints.matcher import Matcher
from kvarn.runtime.tokenizer import Tokenizer, load_tokenizer
from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say, show

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 8},
        "note": {"type": "string"},
    },
    "required": ["name", "age", "tags", "note"],
    "additionalProperties": False,
}
CASES: Mapping[str, Constraint] = {
    "a JSON schema": Constraint("json_schema", json.dumps(PERSON)),
    "any JSON object": Constraint("json_object", ""),
    "a regular expression": Constraint("regex", r"([A-Z][a-z]{1,12} ){3,20}\d{4}-\d\d-\d\d"),
    "a GBNF grammar": Constraint("gbnf", 'root ::= ("- " item "\\n")+\nitem ::= [^\\n]{1,60}'),
    "a call after a trigger": Constraint("json_schema", json.dumps(PERSON), ("<tool_call>",)),
}
TOKENS = 400
FREE = 32
"""Tokens of free text before a trigger."""
MOST = 1e-3
"""Seconds of a mask that nobody notices beside a token of decode."""


def mask_seconds(tokenizer: Tokenizer, constraint: Constraint, n_tokens: int) -> F64:
    """Seconds of each mask of `n_tokens` tokens, in as many answers as that takes."""
    random = np.random.default_rng(1)
    taken: list[float] = []
    trigger = [id for text in constraint.trigger for id in tokenizer.encode(text)]
    while len(taken) < n_tokens:
        matcher, wanted, is_due = Matcher(constraint, tokenizer), list(trigger), False
        matcher.allowed(np.zeros(tokenizer.n_vocab, np.float32))  # compiled by now
        while len(taken) < n_tokens and not matcher.is_complete:
            logits = random.normal(size=tokenizer.n_vocab).astype(np.float32)
            began = time.thread_time()
            allowed = matcher.allowed(logits)
            taken.append(time.thread_time() - began)
            best = int(allowed.ids[np.argmax(allowed.logits)])
            is_due = is_due or len(taken) % FREE == 0
            # It waits for the end of a character, whose bytes small vocabularies have one by one.
            comes = is_due and wanted and wanted[0] in allowed.ids
            matcher.accept(wanted.pop(0) if comes else best)
    return np.array(taken)


def table(tokenizer: Tokenizer, n_tokens: int = TOKENS) -> str:
    """Milliseconds by constraint, in Markdown."""
    rows = [
        f"Masks of {n_tokens:,} tokens, {tokenizer.n_vocab:,} in the vocabulary:",
        "",
        f"| constraint | median, ms | 99%, ms | most, ms | within {1e3 * MOST:g} ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, constraint in CASES.items():
        seconds = mask_seconds(tokenizer, constraint, n_tokens)
        median, high, most = 1e3 * np.quantile(seconds, (0.5, 0.99, 1.0))
        within = f"{np.mean(seconds <= MOST):.1%}"
        rows.append(f"| {name} | {median:.2f} | {high:.2f} | {most:.2f} | {within} |")
    return "\n".join(rows)


def main(words: Sequence[str]) -> int:
    """The exit code."""
    try:
        if len(words) != 1:
            expected = f"{len(words)} words, expected the file of a model"
            raise KvarnError(f"found {expected}: python -m lab.masks MODEL.gguf")
        show(table(load_tokenizer(Path(words[0]))))
    except KvarnError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
