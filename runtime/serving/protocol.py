"""The messages between the HTTP process (server) and the engine process.

Both sides send frames over a socket pair: the length of a message as a little-endian uint32, then
the message in msgpack. Messages are tagged with their type. Imports no NumPy and no kernels.

Requests carry a number that the server chose; what answers them carries the same number. A request
ends with one `Done` or one `Refused`, `Rendered`, `Digests`, `Vectors` or `Packs`. To cancel one,
the server sets the flag of its slot in memory that both processes share (`flags.py`); the engine
then ends it with `Done(finish="cancelled")`. Another flag pauses an answer that nobody reads.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ..chat.replies import Logprob
from ..lens.passages import Lens
from ..sampling.constraints.form import Form
from .prompt import Prompt, Reading


class _Message(msgspec.Struct, tag=True, omit_defaults=True):
    """A message; its type's name is its tag."""


class Numbered(_Message):
    """A request, or what answers one: both have its number."""

    id: int


class Slotted(Numbered):
    """A request that computes, in a slot of `flags.py`."""

    slot: int


# Server to engine.


class Start(_Message):
    """The first message: what the engine opens and may use.

    n_ctx, threads: 0, as the engine decides. queue: requests that wait beside `parallel` ones.
    cancel_path: the file of `flags.py`. A failed start is told by a `Refused` with id 0.
    """

    model: str
    n_ctx: int
    parallel: int
    threads: int
    cancel_path: str
    cache_path: str
    cache_bytes: int
    words: dict[str, Any] = {}
    """Defaults of `Reading.words`, and words about the model (`device`, `kv_on`, `lora`) and
    drafts (`draft`: "ngram", or the path of a model)."""
    queue: int = 64


class Generate(Slotted):
    """Read a prompt and generate; answered by `Progress`, `Pieces`, and `Done` or `Refused`.

    sampling: the options of `Sampler` by name, those that differ from its defaults; `n_probs`, 0
    too, asks for `Logprob`s. special: the text of the answer spells out control tokens, as parsers
    of tool calls need them. ignore_eos: tokens that end generation are forbidden. echo: the prompt
    is the first of the `Pieces`. n_ctx: room for so many tokens, at most that of `Start`. lens:
    `Done` says what the answer attended to.
    """

    prompt: Prompt
    max_tokens: int | None = None
    sampling: dict[str, Any] = {}
    stop: list[str] = []
    constraint: Form | None = None
    special: bool = False
    ignore_eos: bool = False
    echo: bool = False
    reading: Reading = msgspec.field(default_factory=Reading)
    n_ctx: int | None = None
    lens: bool = False


class Remember(Numbered):
    """The message that the server made of an answer, so that a later prompt with the same message
    finds the tokens as they were generated. id: of the `Generate`, which has ended."""

    message: dict[str, Any]


class Render(Numbered):
    """The text and ids of a prompt; answered by `Rendered`. with_ids: the ids, not only a count.
    alone: those of a `Text` as it stands, without what a prompt begins with."""

    prompt: Prompt
    with_ids: bool = False
    alone: bool = False


class FindBeginnings(Numbered):
    """The digests of a prompt's beginnings, or without one of all that was read; answered by
    `Digests`."""

    prompt: Prompt | None = None
    reading: Reading = msgspec.field(default_factory=Reading)


class Embed(Slotted):
    """One vector for each prompt; answered by `Vectors`. truncate: cut those that are too long."""

    prompts: list[Prompt]
    truncate: bool = False


class ReadPack(Slotted):
    """Read a text into a pack; answered by `Progress`, then `Done` or `Refused`."""

    name: str
    text: str
    reading: Reading = msgspec.field(default_factory=Reading)


class ListPacks(Numbered):
    """Answered by `Packs`."""


class RemovePack(Numbered):
    """Answered by `Packs` with those that are left, or by `Refused`."""

    name: str


class Stop(_Message):
    """Take no new requests, end those that are being read within `seconds`, commit, and exit."""

    seconds: float = 5.0


ToEngine: TypeAlias = (
    Start
    | Generate
    | Remember
    | Render
    | FindBeginnings
    | Embed
    | ReadPack
    | ListPacks
    | RemovePack
    | Stop
)


# Engine to server.


class Loading(_Message):
    """A line that says what the engine does before it is ready."""

    step: str


class Ready(_Message):
    """The model is there."""

    name: str
    path: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_params: int
    n_bytes: int
    architecture: str
    chat_template: str = ""
    file_type: str = ""
    """As "Q4_K_M"."""
    notices: list[str] = []


class Progress(Numbered):
    """Progress of a prompt of `total` tokens: `done` are in the context, `cached` of them unread.

    Sent before the first chunk, and after each."""

    done: int
    total: int
    cached: int


class Pieces(Numbered):
    """Text of an answer, and the ids that it ends: none, one or more."""

    text: str
    tokens: list[int] = []
    logprobs: list[Logprob] = []


Finish: TypeAlias = Literal["stop", "eos", "length", "context", "cancelled"]


class Done(Numbered):
    """A request has ended. stop: the stop string, or the text of the token, at which it did."""

    finish: Finish
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    stop: str = ""
    read_seconds: float = 0.0
    generate_seconds: float = 0.0
    lens: Lens | None = None


Kind: TypeAlias = Literal["invalid", "too long", "not found", "busy", "engine"]


class Refused(Numbered):
    """A request that cannot be done, in one sentence. kind: why, for the status of the answer;
    "busy": later it may be; "engine": a fault of kvarn or of the machine."""

    kind: Kind
    message: str


class Rendered(Numbered):
    """text: what the prompt renders to; ids: its tokens, if they were asked for."""

    text: str
    n_tokens: int
    ids: list[int] = []
    pieces: list[bytes] = []


class Digests(Numbered):
    """See `requests.beginnings`; a prompt's are in order, the shortest first."""

    digests: list[str]


class Vectors(Numbered):
    """float32, little endian, of each prompt, with an L2 norm of 1; the tokens of all."""

    vectors: list[bytes]
    n_tokens: int


class PackFacts(msgspec.Struct, omit_defaults=True):
    """One pack: no message, and without the name of its type in JSON. Requests may name it if it is
    sound and finished."""

    name: str
    n_tokens: int
    n_bytes: int
    model: str = ""
    is_sound: bool = True
    is_finished: bool = True


class Packs(Numbered):
    packs: list[PackFacts]


class Counters(_Message):
    """Sent every second while something changes: for `/metrics` and `/health`."""

    values: dict[str, float]
    notices: list[str] = []


FromEngine: TypeAlias = (
    Loading
    | Ready
    | Progress
    | Pieces
    | Done
    | Refused
    | Rendered
    | Digests
    | Vectors
    | Packs
    | Counters
)
