"""Bad input through the C interface: a negative code, or NULL, and one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarn.runtime.loading.default_model import default_model_path

ERROR, BUSY, CANCELLED, NOT_RUNNING, BAD_ARGUMENT, NULL = -1, -2, -3, -4, -5, 0

CASES = {
    "null model": (BAD_ARGUMENT, "the model is NULL"),
    "freed model": (NULL, "has been freed"),
    "null context": (BAD_ARGUMENT, "the context is NULL"),
    "freed context": (BAD_ARGUMENT, "has been freed"),
    "freed twice": (BAD_ARGUMENT, "has been freed"),
    "cancel freed": (BAD_ARGUMENT, "has been freed"),
    "model as context": (BAD_ARGUMENT, "is a handle of another kind"),
    "context as model": (BAD_ARGUMENT, "is a handle of another kind"),
    "no handle": (BAD_ARGUMENT, "is not a handle of kvarn"),
    "model in use": (BUSY, "the model has 1 contexts: free them first"),
    "null text": (BAD_ARGUMENT, "the text is NULL"),
    "null ids": (BAD_ARGUMENT, "the ids are NULL"),
    "negative length": (BAD_ARGUMENT, "the text has 18446744073709551615 bytes"),
    "no utf-8": (BAD_ARGUMENT, "found the byte 0xff at offset 2"),
    "bad id": (ERROR, "token id 1073741824 is outside the vocabulary"),
    "null buffer": (BAD_ARGUMENT, "the buffer is NULL, and its room is 10"),
    "flags": (BAD_ARGUMENT, "the flags are 8"),
    "empty context": (ERROR, "an empty context has no logits"),
    "too long": (ERROR, "tokens do not fit: the context has room for "),
    "truncate": (ERROR, "cannot cut a context of 0 tokens to 5"),
    "no on_text": (BAD_ARGUMENT, "on_text is NULL"),
    "options are no json": (NULL, "which is not JSON"),
    "options are a list": (NULL, "expected a JSON object"),
    "options not utf-8": (NULL, "not UTF-8: found the byte 0xff at offset 1"),
    "unknown option": (NULL, "unknown option 'context': the options are "),
    "ctx below 0": (NULL, "the option ctx is -1: expected a whole number from 0 to 2147483647"),
    "ctx of words": (NULL, "the option ctx is 'many'"),
    "unknown method": (NULL, "the option method is 'guess': expected one of auto, full"),
    "option of another method": (NULL, "budget has no effect with method full"),
    "budget of words": (NULL, "expected a share (more than 0% to 100%) or a count of tokens"),
    "kv_type": (NULL, "the option kv_type is 'q9': expected one of f16"),
    "pack and store": (NULL, "two places for one KV cache"),
    "no such pack": (NULL, "no such folder; `kvarn pack ls` lists the packs"),
    "larger than memory": (NULL, "use a smaller ctx or a smaller kv_type"),
    "temperature": (BAD_ARGUMENT, "the option temp is 'hot': expected a number"),
    "top_p of 2": (BAD_ARGUMENT, "top_p is 2.0, expected a number from 0 to 1"),
    "max_tokens": (BAD_ARGUMENT, "the option max_tokens is -2"),
    "stop of numbers": (BAD_ARGUMENT, "expected a text, or an array of texts"),
    "unknown sampling": (BAD_ARGUMENT, "unknown option 'temperature': the options are adaptive"),
    "draft of a number": (BAD_ARGUMENT, 'expected true, false, "ngram" or the file of a model'),
    "draft of no file": (ERROR, "draft is '/nowhere/small.gguf', neither ngram nor a model"),
    "draft_max alone": (BAD_ARGUMENT, "draft_max 4 has no effect without draft"),
    "messages are an object": (BAD_ARGUMENT, "the messages are no array"),
    "message without a role": (BAD_ARGUMENT, "message 0 is wrong"),
    "last message": (BAD_ARGUMENT, "the last message is not one of the role"),
    "null messages": (BAD_ARGUMENT, "the messages are no array"),
    "on_text stops": (CANCELLED, "on_text asked to stop"),
    "on_progress stops": (CANCELLED, "on_progress asked to stop after 1 of 1"),
    "loading stops": (NULL, "on_progress asked to stop after 0"),
    "no file": (NULL, "/nowhere/model.gguf: no such file"),
    "model of a folder": (NULL, "found a directory, expected a GGUF file"),
    "threads": (NULL, "setting the number of threads to 10000"),
    "truncated file": (NULL, "damaged or cut short"),
    "unsupported file": (NULL, "lxama"),
    "no gguf": (NULL, "not a GGUF file"),
    "pack without a text": (ERROR, "the text is empty"),
    "pack of another text": (ERROR, "tokens of another text"),
    "pack without a name": (BAD_ARGUMENT, "the name of the pack is NULL or empty"),
    "pack of another model": (NULL, "it was made with kvarn-mini"),
    "store in use": (NULL, "another process or context is writing to it"),
    "pack in use": (ERROR, "another process or context is writing to it"),
    "full disk": (ERROR, "cannot be written: File too large; it keeps its last commit"),
    "stop": (1, ""),
    "after stop": (NOT_RUNNING, "kvarn has been stopped"),
    "model after stop": (NULL, "kvarn has been stopped"),
    "start after stop": (NOT_RUNNING, "it has been stopped, which is for good"),
}


@pytest.fixture(scope="module")
def found(
    host: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    """What one process got for all of them."""
    model = default_model_path()
    other = Path(__file__).parents[3] / "lab" / "mini" / "kvarn-mini-llama.gguf"
    answers: dict[str, tuple[int, str]] = host(
        "refused.py", "refusals", model, other, tmp_path_factory.mktemp("refusals")
    )
    return answers


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_a_code_and_one_line(case: str, found: dict[str, tuple[int, str]]) -> None:
    code, said = found[case]
    expected, words = CASES[case]
    assert code == expected
    assert words in said
    assert "\n" not in said and "unexpected" not in said


def test_all_of_it_is_listed(found: dict[str, tuple[int, str]]) -> None:
    assert found.keys() == CASES.keys()
