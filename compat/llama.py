"""llama-cpp-python's `Llama`, on a model and a context of kvarn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..convert.hub.pull import pull
from ..models.config.text_encoders import TEXT_ENCODERS
from ..runtime.chat import lenient
from ..runtime.chat.replies import Reply
from ..runtime.chat.template import ChatTemplate
from ..runtime.chat.tool_calls import Parser, Plain, constraint_for, parser_for
from ..runtime.context import Context
from ..runtime.context.generation import Generation
from ..runtime.context.reading.prompt import prompt_ids
from ..runtime.draft import Draft
from ..runtime.embedding import Embedder
from ..runtime.embedding.loading import load_embedder
from ..runtime.embedding.readers import DecoderReader
from ..runtime.gguf import open_gguf
from ..runtime.loading.adapter_files import AdapterFile
from ..runtime.loading.load import load
from ..runtime.sampling import Constraint
from ..runtime.store import Ram
from ..system.terminal import say
from .answers import Answer, Told, message_of
from .arguments import (
    KV_TYPES,
    RANDOM_SEEDS,
    CompatError,
    Request,
    check_model_arguments,
    form_of,
    request_of,
    value_errors,
)


@dataclass(frozen=True)
class LlamaState:
    """What a context has read: ids of tokens, from which `load_state` reads it again."""

    tokens: tuple[int, ...]
    seed: int | None

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


class Llama:
    """A model with one context, as llama-cpp-python's class has them; responses are OpenAI's.

    model_path: a GGUF file; one of a text encoder makes vectors alone. n_ctx: room for so many
    tokens; 0: as the model was trained. seed: of requests that name none; -1: another one for each.
    type_k, type_v: ggml's numbers of the types of K and V (1 F16, 8 Q8_0, 2 Q4_0). lora_path,
    lora_scale: a low-rank adapter. draft_model: a `LlamaPromptLookupDecoding`, or a draft of kvarn.
    verbose: notices go to stderr. options: those that concern speed are taken and have no effect.

    What it has read stays, and only what follows is read of a prompt that begins alike. Raises
    `CompatError`, a ValueError, for what kvarn does not have, and `KvarnError` as `kvarn.load`.
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
        types = [options.pop(name, None) for name in ("type_k", "type_v")]
        if unknown := [one for one in types if one not in KV_TYPES]:
            raise CompatError(f"Llama: type_k or type_v is {unknown[0]!r:.40}, expected 1, 8 or 2")
        lora, scale = options.pop("lora_path", None), options.pop("lora_scale", None)
        self._draft = draft = options.pop("draft_model", None)
        if not isinstance(draft, Draft | None):
            raise CompatError(
                f"Llama: draft_model is {draft!r:.50}, expected a LlamaPromptLookupDecoding or a "
                "kvarn.DraftModel"
            )
        check_model_arguments(options)
        self.model_path, self.verbose, self._last_n = str(model_path), verbose, last_n_tokens_size
        file, notice = open_gguf(Path(model_path)), say if verbose else None
        self._metadata = file.metadata
        self._opened: Context | None = None
        if file.architecture in TEXT_ENCODERS:
            if lora:
                raise CompatError(f"Llama: lora_path is {lora!r:.80}, and text encoders take none")
            self._embedder = load_embedder(model_path, threads=n_threads, notice=notice)
        else:
            adapters = [AdapterFile(Path(lora), 1.0 if scale is None else scale)] if lora else []
            model = load(model_path, threads=n_threads, notice=notice, lora=adapters)
            self._embedder = Embedder(DecoderReader(model), "mean", model.name)
            store = Ram(KV_TYPES[types[0]], KV_TYPES[types[1]])
            self._opened = model.context(n_ctx or None, store=store)
        self.set_seed(seed)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        local_dir: str | None = None,
        **options: Any,
    ) -> Llama:
        """A model of the Hugging Face hub, downloaded if it is not here yet.

        filename: a file of it, or a pattern of one, as `*q8_0.gguf`. Raises `HubError`.
        """
        for name in ("additional_files", "local_dir_use_symlinks", "cache_dir"):
            if options.pop(name, None) not in (None, "auto", []):
                raise CompatError(f"from_pretrained: kvarn has no {name}: set HF_HUB_CACHE")
        to = None if local_dir is None else Path(local_dir)
        return cls(str(pull(repo_id, file=filename or "", to=to).model), **options)

    def __call__(self, prompt: str | Sequence[int], **options: Any) -> Told:
        """Like `create_completion`."""
        return self.create_completion(prompt, **options)

    @value_errors()
    def create_completion(self, prompt: str | Sequence[int], **options: Any) -> Told:
        """The text that follows a prompt, in which control tokens count; with `stream`, in chunks.

        options: max_tokens (16; 0 or less: as many as fit), temperature (0.8), stop, echo,
        logprobs, seed, grammar, model, and those of `kvarn.Sampler`.
        """
        how = request_of({"max_tokens": 16, **options}, self._defaults(0.8), "create_completion")
        tokenizer = self._context.model.tokenizer
        if isinstance(prompt, str):
            ids, before = prompt_ids(tokenizer, prompt, special=True), prompt
        else:
            ids = [int(token) for token in prompt]
            before = tokenizer.decode(ids) if how.echo else ""
        return self._answer(ids, how, before=before if how.echo else "").told()

    @value_errors()
    def create_chat_completion(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Told:
        """The answer to a conversation, rendered by the model's template; with `stream`, in chunks.

        options: those of `create_completion` (temperature 0.2, no limit), tools, tool_choice,
        response_format, top_logprobs.
        """
        names = ("response_format", "tools", "tool_choice")
        response_format, tools, choice = (options.pop(name, None) for name in names)
        how = request_of(options, self._defaults(0.2), "create_chat_completion")
        model, form = self._context.model, form_of(response_format) or how.sampler.constraint
        template = model.chat_template or ChatTemplate.plain(model.tokenizer.control)
        asked = [message_of(one, f"messages[{i}]") for i, one in enumerate(messages)]
        tools = None if choice == "none" else tools or None
        text = lenient.prompt_of(template, asked, tools, {})
        parser: Parser = parser_for(template.source, tools, text) if tools else Plain()
        if calls := constraint_for(template.source, tools, choice, text):
            if form is not None:
                raise CompatError("tools and a form of the answer exclude each other: omit one")
            form = Constraint.of(calls)
        sampler, stop = replace(how.sampler, constraint=form), (*how.stop, *template.stop)
        how, ids = replace(how, sampler=sampler, stop=stop), prompt_ids(model.tokenizer, text)
        return self._answer(ids, how, is_chat=True, parser=parser).told()

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        """The tokens that follow, without an end: those that end generation are among them."""
        how = request_of(options, self._defaults(0.8), "generate")
        generation = self._generation([int(token) for token in tokens], how)
        yield from generation.ids(stop_at_eos=False)

    @value_errors()
    def eval(self, tokens: Sequence[int]) -> None:
        """Read tokens after those that were read."""
        self._context.prefill([int(token) for token in tokens])

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Reply:
        """Vectors of texts, in OpenAI's form."""
        texts = [input] if isinstance(input, str) else input
        vectors = self.embed(texts)
        data = [{"object": "embedding", "embedding": v, "index": i} for i, v in enumerate(vectors)]
        n_tokens = sum(len(self.tokenize(text.encode())) for text in texts)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": usage}

    @value_errors()
    def embed(self, input: str | list[str], normalize: bool = True, truncate: bool = True) -> Any:
        """A vector of norm 1 for a text, or for each of a list: of a model that generates, the mean
        of its hidden states."""
        if not normalize:
            raise CompatError("embed: normalize is False, and kvarn's vectors have a norm of 1")
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
        if before:
            known = tokenizer.decode_bytes(before, special)
            return tokenizer.decode_bytes([*before, *tokens], special)[len(known) :]
        text = tokenizer.decode_bytes(tokens, special)
        begins = len(tokens) > 0 and tokens[0] == tokenizer.bos_id
        return text.removeprefix(b" ") if begins and not special else text

    def save_state(self) -> LlamaState:
        """What was read. It holds ids alone: `load_state` costs the reading of what is gone."""
        return LlamaState(tuple(self._context.tokens), self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Go on from a state: what the context does not hold any more is read again."""
        shared = self._context.cut_to_shared(state.tokens)
        if shared < len(state.tokens):
            self._context.prefill(list(state.tokens[shared:]))
        self._seed = state.seed

    def reset(self) -> None:
        """Forget what was read."""
        self._context.truncate(0)

    def set_seed(self, seed: int) -> None:
        """The seed of requests that name none; -1: another one for each."""
        self._seed = None if seed in RANDOM_SEEDS else seed

    def close(self) -> None:
        """Free the context."""
        if self._opened is not None:
            self._opened.close()

    def n_ctx(self) -> int:
        """Tokens that fit."""
        return self._embedder.n_ctx if self._opened is None else self._opened.n_ctx

    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self._embedder.n_embd

    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._embedder.tokenizer.n_vocab

    def token_bos(self) -> int:
        """The token that begins texts; -1: there is none."""
        return self._embedder.tokenizer.roles.get("bos", -1)

    def token_eos(self) -> int:
        """The token that ends texts; -1: there is none."""
        return self._embedder.tokenizer.roles.get("eos", -1)

    def token_nl(self) -> int:
        """The token of a line break."""
        return self._embedder.tokenizer.encode("\n")[-1]

    @property
    def n_tokens(self) -> int:
        """Tokens that were read."""
        return len(self._context.tokens)

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says of the model, as texts; its long lists are left out."""
        return {k: str(x) for k, x in self._metadata.items() if isinstance(x, str | int | float)}

    @property
    def context_params(self) -> SimpleNamespace:
        """Sizes of the context, as programs read them: `n_ctx`."""
        return SimpleNamespace(n_ctx=self.n_ctx())

    @property
    def _context(self) -> Context:
        """Raises `CompatError` for a text encoder."""
        if self._opened is None:
            raise CompatError(f"{self.model_path} is a text encoder: it makes vectors, and no text")
        return self._opened

    def _defaults(self, temperature: float) -> dict[str, Any]:
        return {"temp": temperature, "repeat_last_n": self._last_n, "seed": self._seed}

    def _answer(self, ids: list[int], how: Request, **more: Any) -> Answer:
        """What follows a prompt that the context has room for."""
        if len(ids) >= (n_ctx := self._context.n_ctx):
            raise CompatError(f"Requested tokens ({len(ids)}) exceed context window of {n_ctx}")
        start = partial(self._generation, ids, how)
        return Answer(start, how, how.model or self.model_path, len(ids), **more)

    def _generation(self, ids: list[int], how: Request) -> Generation:
        """Generates after a prompt, of which only what the context does not hold is read."""
        rest = ids[self._context.cut_to_prompt(ids) :]
        return self._context.generation(rest, how.max_tokens, how.sampler, how.stop, self._draft)
