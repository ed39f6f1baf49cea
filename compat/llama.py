"""llama-cpp-python's `Llama`, on a model and a context of kvarn."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .. import Completions, Ram, Sampler, load, load_embedder, open_gguf
from ..convert.hub.pull import pull
from ..models.config.architectures import TEXT_ENCODERS
from ..runtime.chat.openai.completions import Response
from ..runtime.chat.openai.errors import RequestError, invalid
from ..runtime.chat.openai.messages import Message
from ..runtime.chat.replies import Reply, embeddings
from ..runtime.draft import Draft
from ..system.terminal import say
from .arguments import KV_TYPES, OF_MODEL, checked, value_errors


class Llama:
    """A model with one context, as llama-cpp-python's class has them; responses are OpenAI's.

    model_path: a GGUF file; one of a text encoder makes vectors alone. n_ctx: tokens that fit; 0:
    as many as the model was trained with. seed: of requests that name none; -1: always another one.
    options: lora_path, lora_scale: an adapter; draft_model: a `LlamaPromptLookupDecoding`, or a
    draft of kvarn; type_k, type_v: ggml's numbers of the types of K and V (`KV_TYPES`). Raises
    `RequestError`, a ValueError, for what kvarn does not have; `KvarnError` as `kvarn.load`.
    """

    def __init__(
        self,
        model_path: str,
        *,
        n_ctx: int = 512,
        n_threads: int | None = None,
        seed: int = -1,
        last_n_tokens_size: int = 64,
        verbose: bool = True,
        **options: Any,
    ) -> None:
        others = checked(options, OF_MODEL)
        lora, draft = others.get("lora_path"), others.get("draft_model")
        if not isinstance(n_ctx, int | None):
            raise invalid("n_ctx", n_ctx, "a number of tokens")
        if not isinstance(draft, Draft | None):
            raise invalid("draft_model", draft, "a draft of kvarn, or none")
        if layers := others.get("n_gpu_layers"):
            warnings.warn(f"n_gpu_layers is {layers}: the CPU computes all layers", stacklevel=2)
        file, notice = open_gguf(Path(model_path)), say if verbose else None
        scalars = {k: x for k, x in file.metadata.items() if isinstance(x, str | int | float)}
        self.metadata = {key: str(value) for key, value in scalars.items()}
        self.model_path = str(model_path)
        self._answers: Completions | None = None
        self.set_seed(seed)
        if file.architecture in TEXT_ENCODERS:
            if lora:
                raise invalid("lora_path", lora, "None: text encoders take none")
            self._embedder = load_embedder(model_path, threads=n_threads, notice=notice)
        else:
            adapter = f"{lora}:{others.get('lora_scale', 1)}" if lora else ()
            model = load(model_path, threads=n_threads, notice=notice, lora=adapter)
            self._embedder = model.embedder()
            k, v = (KV_TYPES[options.get(name)] for name in ("type_k", "type_v"))
            with value_errors():
                context = model.context(n_ctx or None, store=Ram(k, v))
            sampler = Sampler(repeat_last_n=last_n_tokens_size)
            self._answers = Completions(context, sampler, draft, self.model_path)
        self.context_params = SimpleNamespace(n_ctx=self.n_ctx())

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **options: Any) -> Llama:
        """A model of the Hugging Face hub, downloaded if it is not here yet. Raises `HubError`.

        filename: a file of it, or a pattern of one, as `*q8_0.gguf`. options: as of the class, and
        local_dir: the folder for it, in the place of the hub's cache.
        """
        folder = options.pop("local_dir", None)
        checked(options, OF_MODEL)  # what is refused is not downloaded before
        pulled = pull(repo_id, file=filename or "", to=folder and Path(folder))
        return cls(str(pulled.model), **options)

    @value_errors()
    def create_completion(self, prompt: str | Sequence[int], **options: Any) -> Response:
        """The text that follows a prompt; options: fields of `kvarn.Completions`, and grammar."""
        defaults = {"max_tokens": 16, "temperature": 0.8, "seed": self._seed}
        return self._completions.complete(prompt, **defaults | checked(options))

    __call__ = create_completion

    @value_errors()
    def create_chat_completion(self, messages: Iterable[Message], **options: Any) -> Response:
        """The answer to a conversation; options: fields of `kvarn.Completions`, and grammar."""
        defaults = {"temperature": 0.2, "seed": self._seed}
        return self._completions.chat(messages, **defaults | checked(options))

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        """The tokens that follow, without an end: those that end generation are among them."""
        sampler = self._completions.sampler_of({"seed": self._seed} | checked(options))
        return self._completions.generation(tokens, sampler).ids(stop_at_eos=False)

    def eval(self, tokens: Sequence[int]) -> None:
        """Read tokens after those that were read."""
        self._completions.context.prefill(tokens)

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Reply:
        """Vectors of texts, in OpenAI's form."""
        texts = [input] if isinstance(input, str) else input
        n_tokens = sum(len(self.tokenize(text.encode())) for text in texts)
        return embeddings(self.embed(texts), n_tokens, model or self.model_path)

    @value_errors()
    def embed(self, input: str | list[str], normalize: bool = True, truncate: bool = True) -> Any:
        """A vector of norm 1 for a text or each of a list, as `Embedder.embed` makes it."""
        checked({"normalize": normalize})
        vectors = self._embedder.embed(input, truncate=truncate).tolist()
        return vectors[0] if isinstance(input, str) else vectors

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Ids of a text; special: control tokens that it spells out count."""
        return self._embedder.tokenizer.encode(text, bos=add_bos, special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of ids; prev_tokens: those before them, which may need a space between."""
        tokenizer, before = self._embedder.tokenizer, list(prev_tokens or ())
        whole = tokenizer.decode_bytes([*before, *tokens], special)
        text = whole[len(tokenizer.decode_bytes(before, special)) :]
        begins = not special and list(tokens[:1]) == [tokenizer.bos_id]
        return text.removeprefix(b" ") if begins else text

    def save_state(self) -> tuple[int, ...]:
        """The ids of what was read: `load_state` costs the reading of what is gone."""
        return tuple(self._completions.context.tokens)

    def load_state(self, state: Sequence[int]) -> None:
        """Go on from a state: what the context does not hold any more is read again."""
        context = self._completions.context
        if rest := state[context.cut_to_shared(state) :]:
            context.prefill(rest)

    def reset(self) -> None:
        """Forget what was read."""
        self._completions.context.truncate(0)

    def set_seed(self, seed: int) -> None:
        """The seed of requests that name none; -1: another one for each."""
        self._seed = seed

    def close(self) -> None:
        """Free the context."""
        if self._answers is not None:
            self._answers.context.close()

    def n_ctx(self) -> int:
        """Tokens that fit."""
        return (self._embedder if self._answers is None else self._answers.context).n_ctx

    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self._embedder.n_embd

    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._embedder.tokenizer.n_vocab

    def _token_of(self, role: str) -> int:
        """The token of a role; -1: there is none."""
        return self._embedder.tokenizer.roles.get(role, -1)

    token_bos = partialmethod(_token_of, "bos")
    token_eos = partialmethod(_token_of, "eos")

    def token_nl(self) -> int:
        """The token of a line break."""
        return self._embedder.tokenizer.encode("\n")[-1]

    @property
    def n_tokens(self) -> int:
        """Tokens that were read."""
        return len(self._completions.context.tokens)

    @property
    def _completions(self) -> Completions:
        """Raises `RequestError` for a text encoder."""
        if self._answers is None:
            raise RequestError(
                f"{self.model_path} is a text encoder: it makes vectors, and no text"
            )
        return self._answers
