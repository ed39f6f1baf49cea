"""llama-cpp-python's `Llama`, on a model and a context of kvarn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from .. import Context, Embedder, Ram, load, load_embedder, open_gguf
from ..convert.hub.pull import pull
from ..models.config.architectures import TEXT_ENCODERS
from ..runtime.chat import lenient
from ..runtime.chat.replies import Logprob, Reply, embeddings
from ..runtime.chat.template import ChatTemplate
from ..runtime.chat.tool_calls import constraint_for, parser_for
from ..runtime.context.generation import Generation
from ..runtime.context.reading.prompt import prompt_ids
from ..runtime.draft import Draft
from ..runtime.embedding.readers import DecoderReader
from ..runtime.loading.adapter_files import AdapterFile
from ..runtime.sampling import Constraint, Sampler
from ..system.terminal import say
from .answers import Answer, Response, form_of, message_of
from .arguments import KV_TYPES, OF_SPEED, RANDOM_SEEDS, CompatError, check, refusal, value_errors


class LlamaState(NamedTuple):
    """What a context has read: ids of tokens, from which `load_state` reads it again."""

    tokens: tuple[int, ...]
    n_tokens: int
    seed: int | None


class Llama:
    """A model with one context, as llama-cpp-python's class has them; responses are OpenAI's.

    model_path: a GGUF file; one of a text encoder makes vectors alone. n_ctx: room for so many
    tokens; 0: as the model was trained. seed: of requests that name none; -1: another one for each.
    verbose: notices go to stderr. options: lora_path, lora_scale: a low-rank adapter; draft_model:
    a `LlamaPromptLookupDecoding`, or a draft of kvarn; type_k, type_v: ggml's numbers of the types
    of K and V (1 F16, 8 Q8_0, 2 Q4_0); those that concern speed have no effect.

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
        lora, scale = options.pop("lora_path", None), options.pop("lora_scale", None)
        self._draft = draft = options.pop("draft_model", None)
        check("Llama", options, OF_SPEED)
        if not isinstance(n_ctx, int | None):
            raise refusal("Llama", "n_ctx", n_ctx, "a number of tokens")
        if not isinstance(draft, Draft | None):
            raise refusal("Llama", "draft_model", draft, "a draft of kvarn, or none")
        if layers := options.get("n_gpu_layers"):
            message = f"n_gpu_layers is {layers}: kvarn.compat.Llama computes on the CPU"
            warnings.warn(message, stacklevel=2)
        self.model_path, self.verbose, self._last_n = str(model_path), verbose, last_n_tokens_size
        self.set_seed(seed)
        file, notice = open_gguf(Path(model_path)), say if verbose else None
        self._metadata = file.metadata
        self._opened: Context | None = None
        if file.architecture in TEXT_ENCODERS:
            if lora:
                raise refusal("Llama", "lora_path", lora, "None: text encoders take none")
            self._embedder = load_embedder(model_path, threads=n_threads, notice=notice)
            return
        adapters = [AdapterFile(Path(lora), 1.0 if scale is None else scale)] if lora else []
        model = load(model_path, threads=n_threads, notice=notice, lora=adapters)
        self._embedder = Embedder(DecoderReader(model), "mean", model.name)
        k, v = (KV_TYPES[options.get(name)] for name in ("type_k", "type_v"))
        with value_errors():
            self._opened = model.context(n_ctx or None, store=Ram(k, v))

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **options: Any) -> Llama:
        """A model of the Hugging Face hub, downloaded if it is not here yet. Raises `HubError`.

        filename: a file of it, or a pattern of one, as `*q8_0.gguf`. options: as of the class, and
        local_dir, a folder for the file; without it, HF_HUB_CACHE says where it is.
        """
        of_hub = ("additional_files", "local_dir_use_symlinks", "cache_dir")
        check("from_pretrained", {name: options.pop(name, None) for name in of_hub})
        folder = options.pop("local_dir", None)
        to = None if folder is None else Path(folder)
        return cls(str(pull(repo_id, file=filename or "", to=to).model), **options)

    @value_errors()
    def create_completion(self, prompt: str | Sequence[int], **options: Any) -> Response:
        """The text that follows a prompt, in which control tokens count; with `stream`, in chunks.

        options: max_tokens (16; 0 or less: as many as fit), temperature (0.8), stop, echo,
        logprobs, seed, grammar, model, and those of `kvarn.Sampler`.
        """
        answer = self._asked("create_completion", {"max_tokens": 16, **options})
        tokenizer = self._context.model.tokenizer
        if isinstance(prompt, str):
            ids = prompt_ids(tokenizer, prompt, special=True)
        else:
            ids = [int(token) for token in prompt]
        text = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
        if answer.echo:
            answer.before = text
        else:
            answer.choice.n_told = len(text)
        return self._told(answer, ids)

    __call__ = create_completion

    @value_errors()
    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> Response:
        """The answer to a conversation, rendered by the model's template; with `stream`, in chunks.

        options: those of `create_completion` (temperature 0.2, no limit), tools, tool_choice,
        response_format, top_logprobs.
        """
        names = ("response_format", "tools", "tool_choice")
        response_format, tools, choice = (options.pop(name, None) for name in names)
        answer = self._asked("create_chat_completion", options, temp=0.2)
        model, form = self._context.model, form_of(response_format) or answer.sampler.constraint
        template = model.chat_template or ChatTemplate.plain(model.tokenizer.control)
        asked = [message_of(one, f"messages[{i}]") for i, one in enumerate(messages)]
        tools = None if choice == "none" else tools or None
        text = lenient.prompt_of(template, asked, tools, {})
        if tools:
            answer.parser = parser_for(template.source, tools, text)
        if calls := constraint_for(template.source, tools, choice, text):
            if form is not None:
                raise CompatError("tools and a form of the answer exclude each other: omit one")
            form = Constraint.of(calls)
        answer.sampler = replace(answer.sampler, constraint=form)
        answer.stop += tuple(template.stop)
        return self._told(answer, prompt_ids(model.tokenizer, text))

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        """The tokens that follow, without an end: those that end generation are among them."""
        answer = self._asked("generate", options)
        yield from self._generation([int(token) for token in tokens], answer).ids(stop_at_eos=False)

    @value_errors()
    def eval(self, tokens: Sequence[int]) -> None:
        """Read tokens after those that were read."""
        self._context.prefill([int(token) for token in tokens])

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Reply:
        """Vectors of texts, in OpenAI's form."""
        texts = [input] if isinstance(input, str) else input
        n_tokens = sum(len(self.tokenize(text.encode())) for text in texts)
        return embeddings(self.embed(texts), n_tokens, model or self.model_path)

    @value_errors()
    def embed(self, input: str | list[str], normalize: bool = True, truncate: bool = True) -> Any:
        """A vector of norm 1 for a text, or for each of a list: of a model that generates, the mean
        of its hidden states."""
        check("embed", {"normalize": normalize})
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
        text = tokenizer.decode_bytes([*before, *tokens], special)
        if before:
            return text[len(tokenizer.decode_bytes(before, special)) :]
        begins = len(tokens) > 0 and tokens[0] == tokenizer.bos_id
        return text.removeprefix(b" ") if begins and not special else text

    def save_state(self) -> LlamaState:
        """What was read. It holds ids alone: `load_state` costs the reading of what is gone."""
        return LlamaState(tuple(self._context.tokens), self.n_tokens, self._seed)

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
        return (self._opened or self._embedder).n_ctx

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

    @value_errors()
    def _asked(self, call: str, options: Mapping[str, Any], temp: float = 0.8) -> Answer:
        defaults = {"temp": temp, "repeat_last_n": self._last_n, "seed": self._seed}
        model = options.get("model") or self.model_path
        return Answer.of(call, {**options, "model": model}, defaults)

    def _told(self, answer: Answer, ids: list[int]) -> Response:
        """The answer to a prompt that the context has room for."""
        if not ids:
            raise CompatError("the prompt is empty, expected at least one token")
        if len(ids) >= (n_ctx := self._context.n_ctx):
            raise CompatError(f"Requested tokens ({len(ids)}) exceed context window of {n_ctx}")

        def start() -> Generation:
            if answer.before and answer.choice.n_top is not None:
                answer.choice.waiting = self._logprobs(ids, answer.choice.n_top)
            return self._generation(ids, answer)

        return answer.response(len(ids), start)

    def _logprobs(self, ids: list[int], n_top: int) -> list[Logprob]:
        """Of a prompt's tokens, each after those before it, without what begins texts."""
        tokenizer, state = self._context.model.tokenizer, Sampler(n_probs=n_top).start()
        self.reset()
        rows = chain.from_iterable(self._context.read_all_logits(ids[:-1]))
        first = Logprob(ids[0], tokenizer.piece(ids[0]), 0.0)
        told = [first, *(Logprob.at(state, tokenizer, row, id) for row, id in zip(rows, ids[1:]))]
        return told[ids[0] == tokenizer.bos_id :]

    def _generation(self, ids: list[int], answer: Answer) -> Generation:
        """Generates after a prompt, of which only what the context does not hold is read."""
        rest = ids[self._context.cut_to_prompt(ids) :]
        return self._context.generation(
            rest, answer.max_tokens, answer.sampler, answer.stop, self._draft
        )
