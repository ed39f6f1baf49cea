"""Qwen3-Reranker, which says yes or no: its file has these two rows of the output as a classifier,
and the template of pairs, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from ..errors import ConvertError
from .files.jsons import read_bytes
from .tensors import PlannedTensor
from .views import in_order

_NAME = "qwen3-reranker"
_ROWS = "cls.output.weight"
_LABELS = ("yes", "no")
_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer"
    " the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def is_reranker(folder: Path, values: Mapping[str, Any], architecture: str) -> bool:
    """Whether the folder's name, config.json or card says that it is one."""
    if architecture != "qwen3":
        return False
    names = (folder.absolute().name, str(values.get("_name_or_path", "")))
    if any(_NAME in name.lower() for name in names):
        return True
    card = folder / "README.md"
    return card.is_file() and f"# {_NAME}".encode() in read_bytes(card).lower()


def classifier(planned: Sequence[PlannedTensor], texts: Sequence[str]) -> PlannedTensor:
    """The rows of "yes" and "no", of the output matrix or the embedding that it shares.
    `ConvertError` for a vocabulary without these tokens."""
    missing = [label for label in _LABELS if label not in texts]
    if missing:
        raise ConvertError(f"the reranker's vocabulary has no token {missing[0]!r}")
    views = {tensor.name: tensor.view for tensor in planned}
    rows = np.array([texts.index(label) for label in _LABELS])
    view = views.get("output.weight", views["token_embd.weight"])
    return PlannedTensor(_ROWS, in_order(view, rows))


def add_keys(writer: GGUFWriter) -> None:
    """The labels of such a file, and the template that pairs are written into; else nothing."""
    if writer.arch != "qwen3" or _ROWS not in writer.tensors[0]:
        return
    writer.add_classifier_output_labels(list(_LABELS))
    writer.add_chat_template([{"name": "rerank", "template": _TEMPLATE}])
