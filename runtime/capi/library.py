"""The state of libkvarn in a process: each method whose name stands in `python_functions.h` is the
function of that name.

It runs on the thread that called kvarn; what computes goes to the engine's thread.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...jit.launch import launcher
from ...system.errors import KvarnError, no_such_file
from ..chat.conversation import Conversation
from ..context.planning.request import ContextRequest, context_words
from ..context.reading.prompt import prompt_ids
from ..engine import on_engine
from ..home import pack_path
from ..loading.default_model import LISTED, default_model_path
from ..loading.load import load
from ..packs.pack import build_pack, pack_info
from ..store import Disk
from ..tokenizer import Rendered
from . import options
from .arguments import Arguments, Cancelled, InUse, Refused, check_flags, messages_of
from .opened import OpenContext
from .options import BadArgument

if TYPE_CHECKING:
    from ..context import Progress
    from ..model import Model

T = TypeVar("T")

_MODEL, _CONTEXT = 1, 2  # kinds of handles: those of handles.c
_BOS, _SPECIAL = 1, 2


@dataclass
class Library(Arguments):
    """Models and contexts by their handles (`handles.c`). The methods are those of kvarn.h."""

    models: dict[int, Model] = field(default_factory=dict)
    contexts: dict[int, OpenContext] = field(default_factory=dict)

    def model_of(self, handle: int) -> Model:
        return self._of(self.models, handle, _MODEL)

    def find_context(self, handle: int) -> OpenContext:
        return self._of(self.contexts, handle, _CONTEXT)

    def _of(self, table: dict[int, T], handle: int, kind: int) -> T:
        """What a handle stands for; `Refused` where nothing is open under it."""
        if handle not in table:
            raise Refused(self.lib.bad_handle(handle, kind))
        return table[handle]

    def new_handle(self, kind: int) -> int:
        """A handle that was never used before."""
        handle = int(self.lib.handle_new(kind))
        if not handle:
            raise KvarnError("4,096 models and contexts are open: free some")
        return handle

    def register(self, table: dict[int, T], kind: int, value: T) -> int:
        """The new handle of an open model or context."""
        handle = self.new_handle(kind)
        self.lib.stop_of(handle)[0] = self.lib.is_ending()
        table[handle] = value
        return handle

    def end(self) -> int:
        """Save and free everything; raises the first error, after the rest has been freed."""
        first: BaseException | None = None
        for handle in list(self.contexts):
            try:
                self.context_free(handle)
            except (KvarnError, OSError) as error:
                first = first or error
        for handle in list(self.models):
            self.model_free(handle)
        if first is not None:
            raise first
        return 1

    # Models.

    def model_open(self, path: Any, text: Any, on_progress: Any, user: Any) -> int:
        settings = options.parsed(self.string(text), options.MODEL)
        name = self.string(path, decode=os.fsdecode)
        file = default_model_path() if name is None else Path(name)
        if name == "" or not file.exists():  # Path("") is the working folder
            raise KvarnError(no_such_file(file, LISTED))
        n_bytes, progress = file.stat().st_size, self.progress(on_progress, user)
        progress(0, n_bytes)
        model = load(file, notice=self.log, **settings)
        on_engine(launcher.load)
        self.lib.arm()
        progress(n_bytes, n_bytes)
        return self.register(self.models, _MODEL, model)

    def model_free(self, handle: int) -> int:
        model = self.model_of(handle)
        if n_contexts := sum(opened.model == handle for opened in self.contexts.values()):
            raise InUse(f"the model has {n_contexts} contexts: free them first")
        del self.models[handle]
        self.lib.handle_free(handle)
        model.file.close()
        return 1

    def model_info(self, handle: int, buffer: Any, room: int) -> int:
        model = self.model_of(handle)
        facts = {
            "name": model.name,
            "path": str(model.path),
            "architecture": model.file.architecture,
            "parameters": model.file.n_parameters,
            "bytes": model.file.n_bytes,
            "n_ctx_train": model.config.n_ctx_train,
            "n_layers": model.config.n_layers,
            "n_embd": model.config.n_embd,
            "n_vocab": model.config.n_vocab,
            "chat_template": "tokenizer.chat_template" in model.file.metadata,
            "fingerprint": model.fingerprint,
        }
        return self.fill(buffer, room, json.dumps(facts).encode())

    def tokenize(self, handle: int, text: Any, n: int, flags: int, buffer: Any, room: int) -> int:
        tokenizer, decoded = self.model_of(handle).tokenizer, self.utf8(text, n)
        check_flags(flags, _BOS | _SPECIAL)
        encode = partial(prompt_ids, tokenizer) if flags & _BOS else tokenizer.encode
        ids = array("i", [*encode(decoded, special=bool(flags & _SPECIAL)), -1])
        self.copy(buffer, room, ids.tobytes(), len(ids))
        return len(ids)

    def detokenize(self, handle: int, ids: Any, n: int, flags: int, buffer: Any, room: int) -> int:
        tokenizer = self.model_of(handle).tokenizer
        check_flags(flags, _SPECIAL)
        text = tokenizer.decode(self.ids(ids, n), special=bool(flags & _SPECIAL))
        return self.fill(buffer, room, text.encode("utf-8", "replace"))

    # Contexts.

    def context_new(self, handle: int, text: Any) -> int:
        model = self.model_of(handle)
        words = options.parsed(self.string(text), context_words())
        context = model.open(ContextRequest.of(words))
        opened = OpenContext(context, handle, base=len(context.tokens))
        try:
            context_handle = self.register(self.contexts, _CONTEXT, opened)
        except BaseException:
            context.close()
            raise
        context.stop_at(self._stop_address(context_handle))
        for line in context.notices:
            self.log(line)
        return context_handle

    def context_free(self, handle: int) -> int:
        """Frees it even where saving fails."""
        context = self.find_context(handle).context
        try:
            self.lib.stop_of(handle)[0] = 0  # what is to be saved may have to be computed
            context.close()
        finally:
            del self.contexts[handle]
            self.lib.handle_free(handle)
        return 1

    def context_info(self, handle: int, buffer: Any, room: int) -> int:
        context = self.find_context(handle).context
        facts = {
            "tokens": len(context.tokens),
            **context.plan.as_dict(),
            "kv_bytes": context.n_bytes,
            "notices": list(context.notices),
            **context.stats.as_dict(),
        }
        return self.fill(buffer, room, json.dumps(facts).encode())

    def read(self, handle: int, text: Any, n: int, on_progress: Any, user: Any) -> int:
        opened = self.find_context(handle)
        ids = opened.context.encode(self.utf8(text, n))
        return _read(opened, ids, self.progress(on_progress, user))

    def read_ids(self, handle: int, ids: Any, n: int, on_progress: Any, user: Any) -> int:
        opened = self.find_context(handle)
        return _read(opened, self.ids(ids, n), self.progress(on_progress, user))

    def truncate(self, handle: int, n: int) -> int:
        opened = self.find_context(handle)
        opened.context.truncate(n)
        opened.base, opened.conversation = n, None
        return n + 1

    def save(self, handle: int) -> int:
        (context := self.find_context(handle).context).commit()
        return len(context.tokens) + 1

    def logits(self, handle: int, out: Any, room: int) -> int:
        logits = self.find_context(handle).context.logits
        self.copy(out, room, logits.tobytes(), logits.size)
        return int(logits.size)

    def generate(self, handle: int, text: Any, on_text: Any, user: Any) -> int:
        opened = self.find_context(handle)
        settings = options.parsed(self.string(text), options.GENERATE)
        generation = opened.context.generation((), **opened.generation(settings, self.log))
        try:
            self._write(handle, generation.pieces(), on_text, user)
        finally:
            opened.base = len(opened.context.tokens)
        return generation.n_tokens + 1

    def chat(self, handle: int, messages: Any, text: Any, on_text: Any, user: Any) -> int:
        opened = self.find_context(handle)
        settings = options.parsed(self.string(text), options.CHAT)
        system, before, question = messages_of(self.string(messages, name="the messages"))
        conversation = opened.conversation or Conversation(opened.context)
        base = settings.get("base", opened.base)
        if base > len(opened.context.tokens):
            raise BadArgument(
                f"the option base is {base}, and the context holds {len(opened.context.tokens)}"
            )
        if base != conversation.base:
            conversation.base, conversation.prompt = base, (Rendered(), 0)
        for name, value in opened.generation(settings, self.log).items():
            setattr(conversation, name, value)
        conversation.system, conversation.messages = system, before
        opened.conversation, conversation.last = conversation, None
        self._write(handle, conversation.ask(question), on_text, user)
        assert conversation.last is not None
        return conversation.last.n_tokens + 1

    def _write(self, handle: int, pieces: Iterator[str], on_text: Any, user: Any) -> None:
        """Pass an answer to the program piece by piece."""
        if on_text == self.ffi.NULL:
            raise BadArgument("on_text is NULL: expected a function that takes the text")
        stop = self.lib.stop_of(handle)
        for piece in pieces:
            raw = piece.encode("utf-8", "replace")
            if self.lib.call_text(on_text, raw, len(raw), user):
                raise Cancelled("on_text asked to stop")
            if stop[0]:
                raise Cancelled("stopped between two tokens")

    def _stop_address(self, handle: int) -> int:
        """Address of the word that stops a context."""
        return int(self.ffi.cast("uintptr_t", self.lib.stop_of(handle)))

    # Packs.

    def pack_build(
        self, handle: int, name: Any, text: Any, n: int, given: Any, on_progress: Any, user: Any
    ) -> int:
        model, words = self.model_of(handle), options.parsed(self.string(given), options.PACK)
        store = Disk(pack_path(self.pack_name(name)), *words.get("kv_type", ()))
        decoded, request = self.utf8(text, n), ContextRequest.of({**words, "kv_type": None})
        progress, stoppable = self.progress(on_progress, user), self.new_handle(_CONTEXT)
        stop = self._stop_address(stoppable)
        try:
            info = build_pack(
                model, store, decoded, request.n_ctx, request.prefill, progress,
                lambda context: context.stop_at(stop),
            )  # fmt: skip
            return info.n_tokens + 1
        finally:
            self.lib.handle_free(stoppable)

    def pack_info(self, name: Any, buffer: Any, room: int) -> int:
        facts = pack_info(pack_path(self.pack_name(name))).as_dict()
        return self.fill(buffer, room, json.dumps(facts).encode())


def _read(opened: OpenContext, ids: list[int], progress: Progress) -> int:
    try:
        opened.context.prefill(ids, progress)
    finally:
        opened.base = len(opened.context.tokens)
    return opened.base + 1
