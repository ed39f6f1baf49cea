"""An entry of the table of Hugging Face architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gguf import GGUFWriter

from ...ops.arrays import F32
from .config import Config
from .views import View, Views


@dataclass(frozen=True)
class HFArchitecture:
    """The rules by which one family of models is converted."""

    name: str
    """`general.architecture` of the file."""
    add_keys: Callable[[GGUFWriter, Config], None]
    """Writes the architecture's own metadata."""
    permuted: bool = False
    """Rows of queries and keys go from halves (i, i + E/2) to neighbours (2i, 2i + 1)."""
    norm_shift: float = 0.0
    """Added to weights of norms: transformers' Gemma multiplies by 1 + weight."""
    drops_output: bool = False
    """A file of this architecture never has an output matrix: it is the embedding."""
    drops_zero_bias: bool = False
    """Biases are left out where they are zero, and refused where they are not."""
    space_prefix: bool | None = None
    """`tokenizer.ggml.add_space_prefix` of SentencePiece vocabularies; None: as their files say."""
    vocabulary: str = "llama"
    """`tokenizer.ggml.model` of a SentencePiece vocabulary that only tokenizer.json has; "bert":
    the vocabulary is WordPiece."""
    added_tokens_as_listed: bool = False
    """Added tokens are control tokens only where they are marked special, however they look."""
    shifted: str | tuple[str, ...] = "norm.weight"
    """How the names of norms end to whose weights `norm_shift` is added."""
    given: Callable[[Config], Mapping[str, F32]] | None = None
    """Makes vectors that the file has and the shards have not."""
    renames: tuple[tuple[str, str], ...] = ()
    """Regular expressions of stored names, and the names in their place, before anything else."""
    rewrite: Callable[[Config, Views], Mapping[str, View]] | None = None
    """Makes the file's tensors of stored ones where more than the name differs."""
    packed: str | None = None
    """The `quant_method` of weights that the file has as they are stored."""
    names: str | None = None
    """The architecture by whose names gguf-py knows the tensors; None: its own."""
    choose: Callable[[Config, HFArchitecture], HFArchitecture] | None = None
    """The entry in its place, by the settings of a model."""
    also: tuple[str, ...] = ()
    """Names of the files of entries that `choose` makes, which no other entry has."""
    factors: Callable[[Config, str, int], list[F32]] | None = None
    """(config, name of a stored tensor, its rows) → what its weights are multiplied by, one after
    the other: a factor of each row, or one of all, (rows,) or (1,)."""
    encodes: bool = False
    """It reads texts in both directions and has no output matrix (`models.text_encoders`)."""
    activation: str = "hidden_act"
    """The key that names the activation."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Settings of which a file can have one value alone, which config.json may leave out."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What config.json may leave out: of the table, see `table`."""
