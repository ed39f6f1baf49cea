"""A process that reads a byte-level vocabulary with the tokenizers library, and nothing else.

The library is native code: a hostile tokenizer.json makes it abort, loop, or take all memory, which
the same process cannot catch. `library.read` runs it: a JSON request on stdin, a JSON answer on
stdout, or an exit code.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    _limit(request["max_bytes"], request["max_seconds"])
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    try:
        answer = _read(request)
    except Exception as error:  # the library raises nothing narrower
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


def _limit(max_bytes: int, max_seconds: int) -> None:
    """Memory and time of this process; where the system knows no such limit, time alone."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (max_seconds, max_seconds))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))


def _read(request: dict[str, Any]) -> dict[str, Any]:
    from tokenizers import AddedToken, Tokenizer

    if "assembled" in request:
        tokenizer = _assembled(**request["assembled"])
    else:
        tokenizer = Tokenizer.from_str(request["saved"])
        tokenizer.no_padding()
        tokenizer.no_truncation()
    tokenizer.add_tokens(
        [
            AddedToken(text, special=special, normalized=False)
            for text, special in request["added"]
            if "assembled" in request or tokenizer.token_to_id(text) is None
        ]
    )
    added = tokenizer.get_added_tokens_decoder()
    return {
        "vocab": tokenizer.get_vocab(with_added_tokens=True),
        "added": [
            (token, entry.content, entry.special, _written(tokenizer, entry))
            for token, entry in added.items()
        ],
        "ids": [
            tokenizer.encode(request["check"], add_special_tokens=special).ids
            for special in (True, False)
        ],
        "cuts": [_cuts(tokenizer, text) for text in request["probes"]],
    }


def _cuts(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """First and stop of each word of a text, by the pre-tokenizer; none where there is none."""
    if tokenizer.pre_tokenizer is None:
        return []
    return [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _written(tokenizer: Any, entry: Any) -> str:
    """An added token as it stands in a text."""
    if entry.normalized:
        return str(entry.content)
    ids = tokenizer.encode(entry.content, add_special_tokens=False).ids
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def _assembled(vocab: str, merges: str, pattern: str | None) -> Any:
    """A tokenizer of vocab.json and merges.txt."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


if __name__ == "__main__":
    main()
