"""llama-cpp-python's `Llama`, on a model and a context of kvarn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..convert.hub.pull import pull
from ..runtime.chat import ChatTemplate
from ..runtime.context.reading.prompt import prompt_ids
from ..runtime.loading.load import load
from ..runtime.store import Ram
from ..system.terminal import say
from .answers import (
    Answer,
    Reply,
    chat,
    chat_chunks,
    completion,
    completion_chunks,
    head_of,
)
from .arguments import (
    KV_TYPES,
    RANDOM_SEEDS,
    CompatError,
    Wanted,
    check_model_arguments,
    form_of,
    value_errors,
    wanted,
)
from .chats import asked_of

_PROMPT_END = 64
"""Characters of a prompt's end that tell whether it opens the model's reasoning."""


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

    model_path: a GGUF file. n_ctx: room for so many tokens; 0: as the model was trained. seed: of
    requests that name none; -1: another one for each. type_k, type_v: ggml's numbers of the types
    of K and V (1 F16, 8 Q8_0, 2 Q4_0). verbose: notices go to stderr. options: those that concern
    speed are taken and have no effect.

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
        check_model_arguments(options)
        self.model_path, self.verbose = str(model_path), verbose
        self._model = load(model_path, threads=n_threads, notice=say if verbose else None)
        store = Ram(KV_TYPES[types[0]], KV_TYPES[types[1]])
        self._context = self._model.context(n_ctx or None, store=store)
        self._last_n = last_n_tokens_size
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
        exact = filename is not None and not any(sign in filename for sign in "*?[")
        pulled = pull(
            repo_id,
            include=() if exact or filename is None else (filename,),
            file=filename if exact else None,
            to=None if local_dir is None else Path(local_dir),
        )
        path = pulled.model
        if path is None and filename is not None:  # a pattern: the first part of the only model
            path = next((p for p in _ggufs(pulled.folder) if fnmatchcase(p.name, filename)), None)
        if path is None:
            raise CompatError(
                f"from_pretrained: {repo_id} has no GGUF file {filename or ''}".rstrip()
            )
        return cls(str(path), **options)

    def __call__(self, prompt: str | Sequence[int], **options: Any) -> Reply | Iterator[Reply]:
        """As `create_completion`."""
        return self.create_completion(prompt, **options)

    def create_completion(
        self, prompt: str | Sequence[int], **options: Any
    ) -> Reply | Iterator[Reply]:
        """The text that follows a prompt, in which control tokens count; with `stream`, in chunks.

        options: max_tokens (16; 0 or less: as many as fit), temperature (0.8), stop, echo,
        logprobs, seed, grammar, model, and those of `kvarn.Sampler`.
        """
        how = wanted({"max_tokens": 16, **options}, self._defaults(0.8), "create_completion")
        if isinstance(prompt, str):
            ids = prompt_ids(self._model.tokenizer, prompt, special=True)
        else:
            ids = [int(token) for token in prompt]
        before = ""
        if how.echo:
            before = prompt if isinstance(prompt, str) else self._model.tokenizer.decode(ids)
        answer = self._answer(ids, how)
        head = head_of("text_completion", how.name or self.model_path)
        make = completion_chunks if how.stream else completion
        return make(answer, head, before)

    def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> Reply | Iterator[Reply]:
        """The answer to a conversation, rendered by the model's template; with `stream`, in chunks.

        options: those of `create_completion` (temperature 0.2, no limit), tools, tool_choice,
        response_format, top_logprobs.
        """
        asked = dict(options)
        form = form_of(asked.pop("response_format", None))
        tools, choice = asked.pop("tools", None) or None, asked.pop("tool_choice", None)
        how = wanted(asked, self._defaults(0.2), "create_chat_completion")
        with value_errors():
            template = self._template()
            question = asked_of(template, messages, None if choice == "none" else tools, choice)
            if question.form is not None and (form or how.sampler.constraint):
                raise CompatError("tools and a form of the answer exclude each other: omit one")
            if (form := form or question.form) is not None:
                how = replace(how, sampler=replace(how.sampler, constraint=form))
            ids = prompt_ids(self._model.tokenizer, question.text)
            parser = question.parser
        how = replace(how, stop=(*how.stop, *template.stop))
        answer = self._answer(ids, how, special=parser is not None and parser.special)
        kind = "chat.completion.chunk" if how.stream else "chat.completion"
        make = chat_chunks if how.stream else chat
        return make(answer, head_of(kind, how.name or self.model_path), parser)

    def generate(self, tokens: Sequence[int], **options: Any) -> Iterator[int]:
        """The tokens that follow, without an end: those that end generation are among them."""
        asked = {"temperature" if name == "temp" else name: x for name, x in options.items()}
        how = wanted(asked, self._defaults(0.8), "generate")
        ids = [int(token) for token in tokens]
        kept = self._context.cut_to_prompt(ids)
        generation = self._context.generation(ids[kept:], None, how.sampler)
        yield from generation.ids(stop_at_eos=False)

    def eval(self, tokens: Sequence[int]) -> None:
        """Read tokens after those that were read."""
        with value_errors():
            self._context.prefill([int(token) for token in tokens])

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Reply:
        """Vectors of texts, in OpenAI's form."""
        texts = [input] if isinstance(input, str) else input
        vectors = self.embed(texts)
        data = [{"object": "embedding", "embedding": v, "index": i} for i, v in enumerate(vectors)]
        n_tokens = sum(len(self.tokenize(text.encode())) for text in texts)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": usage}

    def embed(self, input: str | list[str], normalize: bool = True, truncate: bool = True) -> Any:
        """A vector of norm 1 for a text, or for each of a list: the mean of its hidden states."""
        if not normalize:
            raise CompatError("embed: normalize is False, and kvarn's vectors have a norm of 1")
        texts = [input] if isinstance(input, str) else input
        with value_errors():
            vectors = self._model.embed(texts, truncate=truncate).tolist()
        return vectors[0] if isinstance(input, str) else vectors

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Ids of a text; special: control tokens that it spells out count."""
        return self._model.tokenizer.encode(text, bos=add_bos, special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of ids; prev_tokens: those before them, which may need a space between."""
        tokenizer, before = self._model.tokenizer, list(prev_tokens or ())
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
        self._context.close()

    def n_ctx(self) -> int:
        """Tokens that fit."""
        return self._context.n_ctx

    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self._model.config.n_embd

    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._model.config.n_vocab

    def token_bos(self) -> int:
        """The token that begins texts; -1: there is none."""
        return self._role("bos")

    def token_eos(self) -> int:
        """The token that ends texts; -1: there is none."""
        return self._role("eos")

    def token_nl(self) -> int:
        """The token of a line break."""
        return self._model.tokenizer.encode("\n")[-1]

    @property
    def n_tokens(self) -> int:
        """Tokens that were read."""
        return len(self._context.tokens)

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says of the model, as texts; its long lists are left out."""
        stored = self._model.file.metadata
        return {k: str(v) for k, v in stored.items() if isinstance(v, str | int | float)}

    @property
    def context_params(self) -> SimpleNamespace:
        """Sizes of the context, as programs read them: `n_ctx`."""
        return SimpleNamespace(n_ctx=self.n_ctx())

    def _role(self, role: str) -> int:
        return self._model.tokenizer.roles.get(role, -1)

    def _defaults(self, temperature: float) -> dict[str, Any]:
        return {"temp": temperature, "repeat_last_n": self._last_n, "seed": self._seed}

    def _answer(self, ids: list[int], how: Wanted, *, special: bool = False) -> Answer:
        if len(ids) >= self.n_ctx():
            raise CompatError(
                f"Requested tokens ({len(ids)}) exceed context window of {self.n_ctx()}"
            )
        return Answer(self._context, ids, how, special)

    def _template(self) -> ChatTemplate:
        tokenizer = self._model.tokenizer
        return self._model.chat_template or ChatTemplate.plain(tokenizer.control)


def _ggufs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.gguf"))
