"""Which files of a repository are pulled."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.convert.errors import HubError
from kvarn.convert.hub.choose import Choice, RepositoryFile, choose, quantisations

GB = 1 << 30
WEIGHTS = {
    "model-00001-of-00002.safetensors": 4 * GB,
    "model-00002-of-00002.safetensors": 2 * GB,
    "model.safetensors.index.json": 20_000,
    "config.json": 700,
    "tokenizer.json": 9_000_000,
    "tokenizer_config.json": 50_000,
    "generation_config.json": 200,
    "chat_template.jinja": 4_000,
    "LICENSE": 11_000,
    "README.md": 8_000,
}
BESIDE = {
    "consolidated.safetensors": 6 * GB,
    "pytorch_model.bin": 6 * GB,
    "original/tokenizer.model": 2_000_000,
    "onnx/model.safetensors": GB,
    ".gitattributes": 1_500,
    "figure.png": 90_000,
}
READY = {
    "Model-1B-F16.gguf": 12 * GB,
    "Model-1B-Q8_0.gguf": 6 * GB,
    "Model-1B-Q4_K_M.gguf": 4 * GB,
    "model-1b-iq4_xs.gguf": 3 * GB,
    "Model-1B-Q2_K.gguf": 2 * GB,
    "mmproj-Model-1B-F16.gguf": GB,
    "Model-1B.imatrix.gguf": 5_000_000,
    "README.md": 3_000,
}
SPLIT = {f"Q6_K/big-Q6_K-0000{i}-of-00003.gguf": 9 * GB for i in (1, 2, 3)}


def listed(*folders: dict[str, int]) -> list[RepositoryFile]:
    return [RepositoryFile(name, n) for folder in folders for name, n in folder.items()]


def chosen(*folders: dict[str, int], **arguments: Any) -> Choice:
    arguments.setdefault("budget", 8 * GB)
    return choose(listed(*folders), **arguments)


def names(choice: Choice) -> set[str]:
    return {file.name for file in choice.files}


def test_weights_to_convert_come_with_what_conversion_reads() -> None:
    choice = chosen(WEIGHTS, BESIDE, READY)
    assert names(choice) == WEIGHTS.keys()
    assert choice.model is None


def test_an_adapter_comes_alone_and_after_models() -> None:
    adapter = {"adapter_config.json": 900, "adapter_model.safetensors": 30_000_000}
    beside = {"tokenizer.json": 9_000_000, "README.md": 5_000, "checkpoint-9/optimizer.pt": GB}
    choice = chosen(adapter, beside)
    assert names(choice) == adapter.keys() | {"README.md"} and choice.model is None
    assert names(chosen(adapter, WEIGHTS)) == WEIGHTS.keys()
    assert chosen(adapter, READY).model is not None
    with pytest.raises(HubError, match="nor an adapter"):
        chosen({"adapter_config.json": 900})


def test_types_are_read_from_names_and_other_files_are_no_models() -> None:
    names_by_type = {q.type: q.name for q in quantisations(listed(READY, SPLIT))}
    assert names_by_type == {
        "Q2_K": "Model-1B-Q2_K.gguf",
        "IQ4_XS": "model-1b-iq4_xs.gguf",
        "Q4_K_M": "Model-1B-Q4_K_M.gguf",
        "Q8_0": "Model-1B-Q8_0.gguf",
        "F16": "Model-1B-F16.gguf",
        "Q6_K": "Q6_K/big-Q6_K-00001-of-00003.gguf",
    }


@pytest.mark.parametrize(
    ("budget", "expected"), [(99, "Q8_0"), (6, "Q8_0"), (5, "Q4_K_M"), (3, "iq4_xs"), (1, "Q2_K")]
)
def test_the_largest_quantisation_that_fits(budget: int, expected: str) -> None:
    choice = chosen(READY, budget=budget * GB)
    assert choice.model is not None and expected in choice.model
    assert names(choice) == {choice.model}
    assert len(choice.ready) == 5


def test_a_ready_model_may_be_named() -> None:
    for file in ("Q4_K_M", "q4_k_m", "Model-1B-Q4_K_M.gguf"):
        assert chosen(WEIGHTS, READY, file=file).model == "Model-1B-Q4_K_M.gguf"
    choice = chosen(SPLIT, file="Q6_K")
    assert names(choice) == SPLIT.keys()
    assert choice.model == min(SPLIT)
    assert chosen({"only-f16.gguf": GB}).model == "only-f16.gguf"


TAGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # tag, the file that it names, and files of the repository
    ("UD-Q4_K_XL", "M-UD-Q4_K_XL.gguf", ("M-Q4_K_M.gguf", "M-UD-IQ2_M.gguf")),
    ("ud-iq2_m", "M-UD-IQ2_M.gguf", ("M-Q4_K_M.gguf",)),
    ("Q4_K_XL", "M-UD-Q4_K_XL.gguf", ("M-Q4_K_M.gguf",)),
    ("Q4_K_XL", "M-Q4_K_XL.gguf", ("A-UD-Q4_K_XL.gguf",)),
    ("i1-Q4_K_M", "m.i1-Q4_K_M.gguf", ("m.Q4_K_M.gguf",)),
    ("Q4_K_M", "m.Q4_K_M.gguf", ("a.i1-Q4_K_M.gguf",)),
    ("F16", "z-F16.gguf", ("a-BF16.gguf",)),
    ("small", "m-small-Q8_0.gguf", ("m-large-Q8_0.gguf",)),
    ("Q6_K", "Qwen-9B-MTP-Q6_K.gguf", ("mtp-Qwen-9B-Q6_K.gguf", "eagle3-Qwen-Q6_K.gguf")),
    ("Q4_K_M", "M-imatrix-Q4_K_M.gguf", ("imatrix.gguf", "M.imatrix.gguf", "imatrix_M.gguf")),
    ("Q8_0", "M-Q8_0.gguf", ("M.mmproj-Q8_0.gguf", "mmproj-Q8_0.gguf")),
    ("Q4_K_M", "Q4_K_M/model.gguf", ("Q8_0/model.gguf",)),
    ("Q8_0", "Q8_0/m-00001-of-00001.gguf", ("Q4_K_M/m-00001-of-00001.gguf",)),
    ("q8_0", "M-Q8_0.GGUF", ("M-Q4_K_M.GGUF",)),
    ("m-q8_0.gguf", "M-Q8_0.gguf", ("M-Q4_K_M.gguf",)),
    ("*q8_0.gguf", "M-Q8_0.gguf", ("A-Q4_K_M.gguf", "A-Q8_0-x.gguf")),
    ("", "Qwen-MTP-Q6_K.gguf", ("mtp-Qwen-Q8_0.gguf",)),
    ("latest", "M-Q8_0.gguf", ("A-Q4_K_M.gguf",)),
)  # fmt: skip


@pytest.mark.parametrize(("tag", "expected", "others"), TAGS)
def test_tags_name_what_llama_cpp_takes(tag: str, expected: str, others: tuple[str, ...]) -> None:
    """Its rule (common/download.cpp): the tag before "." or "-", any case, anywhere in the path;
    beyond it, types exactly before that, folders named as types, "latest", and .GGUF."""
    sizes = dict.fromkeys(others, GB) | {expected: 2 * GB}
    assert chosen(sizes, file=tag).model == expected


def test_a_tag_that_is_half_a_type_names_nothing() -> None:
    with pytest.raises(HubError, match="no 'Q8'; it has Q4_K_M, Q8_0"):
        chosen({"M-Q4_K_M.gguf": GB, "M-Q8_0.gguf": 2 * GB}, file="Q8")


def test_models_of_one_type_are_listed_by_name() -> None:
    sizes = {"a-Q4_K_M.gguf": GB, "b-Q4_K_M.gguf": 2 * GB, "a-UD-Q4_K_M.gguf": 3 * GB}
    with pytest.raises(HubError, match=r"it has a-Q4_K_M\.gguf, b-Q4_K_M\.gguf, UD-Q4_K_M$"):
        chosen(sizes, file="Q8_0")
    assert chosen(sizes, file="Q4_K_M").model == "a-Q4_K_M.gguf"


def test_shards_belong_to_one_model_by_their_count() -> None:
    halves = {f"m-Q8_0-0000{i}-of-00002.GGUF": GB for i in (1, 2)}
    thirds = {f"m-Q8_0-0000{i}-of-00003.GGUF": GB for i in (1, 2, 3)}
    choice = chosen(halves, thirds, {"m-Q8_0.GGUF": GB}, file="m-Q8_0-00002-of-00003.GGUF")
    assert names(choice) == thirds.keys()
    assert choice.model == min(thirds)
    assert len(choice.ready) == 3


def test_patterns_decide_alone() -> None:
    choice = chosen(WEIGHTS, BESIDE, include=["*.json"], exclude=["token*"])
    assert names(choice) == {
        "config.json", "generation_config.json", "model.safetensors.index.json"
    }  # fmt: skip
    assert choice.model is None
    assert chosen(READY, include=["*Q2_K*"]).model == "Model-1B-Q2_K.gguf"
    with pytest.raises(HubError, match="no file is left"):
        chosen(READY, exclude=["*"])


def test_what_cannot_be_pulled_is_said() -> None:
    with pytest.raises(HubError, match=r"pickles alone.*refs/pr"):
        chosen({"pytorch_model.bin": GB, "config.json": 9})
    with pytest.raises(HubError, match="neither safetensors"):
        chosen({"README.md": 9})
    with pytest.raises(HubError, match="no 'Q3_K'; it has Q2_K, IQ4_XS, Q4_K_M, Q8_0, F16"):
        chosen(READY, file="Q3_K")
    with pytest.raises(HubError, match="one of 3 shards, 2 are there"):
        chosen(dict(list(SPLIT.items())[:2]))
