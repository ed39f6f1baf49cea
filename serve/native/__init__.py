"""kvarn's own paths, and those of llama.cpp's server that other programs know.

state.py    /health, /props
tokens.py   /tokenize, /detokenize, /apply-template
packs.py    /packs: documents are read, listed, removed; those that are
documents.py    sent as files become texts
metrics.py  /metrics
"""

from ..beginnings import list_digests
from ..operations import Operation
from .documents import PackRequest, document_of
from .metrics import metrics
from .packs import packs, read_pack, remove_pack
from .state import props
from .tokens import (
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
    apply_template,
    detokenize,
    tokenize,
)

OPERATIONS = (
    Operation("GET", "/props", props, summary="The model and how it is served"),
    Operation("GET", "/metrics", metrics, summary="Counters, as Prometheus reads them"),
    Operation("POST", "/tokenize", tokenize, TokenizeRequest, "The tokens of a text"),
    Operation("POST", "/detokenize", detokenize, DetokenizeRequest, "The text of tokens"),
    Operation("POST", "/apply-template", apply_template, TemplateRequest, "A conversation as text"),
    Operation(
        "GET", "/beginnings", list_digests, summary="Digests of what was read, for kvarn route"
    ),
    Operation("GET", "/packs", packs, summary="The documents that requests may name"),
    Operation(
        "POST", "/packs", read_pack, PackRequest, "Read a document, with progress", document_of
    ),
    Operation("DELETE", "/packs/{name}", remove_pack, summary="Remove a document"),
)
