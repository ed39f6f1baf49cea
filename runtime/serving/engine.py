"""The engine process: loads a model, and does what the server asks of it.

    main thread      receives messages
    engine thread    computes: loads the model, then runs the scheduler
    two threads      render and tokenise prompts, beside the passes

It ends, with all committed, when the server says `Stop`, when it gets SIGTERM, and when the server
is gone.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...models.config import ModelConfig
from ...ops.cpu import CPU
from ...system.errors import KvarnError, message_of
from ...system.spelling import as_flag, spell
from ..context.batch import Batch
from ..context.planning.plan import question_prefill
from ..context.planning.request import ContextRequest
from ..draft import DraftModel
from ..draft.base import WORDS
from ..engine import on_engine
from ..gguf import open_gguf
from ..loading.adapter_files import adapter_files
from ..loading.adapters import check_adapters
from ..loading.load import load
from ..packs.pack import remove_pack
from ..rehearsal import rehearsals
from ..store import Ram
from .drafts import Drafts, draft_request
from .flags import SLOTS, Flags
from .frames import Connection
from .library import LONG, Library
from .protocol import (
    Digests,
    Done,
    Embed,
    FindBeginnings,
    Generate,
    ListPacks,
    Loading,
    Packs,
    ReadPack,
    Ready,
    Refused,
    Remember,
    RemovePack,
    Render,
    Slotted,
    Start,
    Stop,
    ToEngine,
    Vectors,
)
from .reading_tasks import EmbedTask, PackTask
from .refusal import refusal_of, reject
from .requests.answered_chats import AnsweredChats
from .requests.beginnings import Beginnings
from .requests.context_sizes import check_memory, fitting_size, notices_of
from .requests.contexts import list_packs, pack_folder, refuse_bad_pack, request_of
from .requests.preparing import RequestPreparer
from .scheduler import Scheduler
from .tasks import AnswerTask
from .text_encoders import text_encoder_engine

if TYPE_CHECKING:
    import msgspec

    from ..model import Model
    from ..rehearsal import Rehearsal


MODEL_WORDS = ("device", "kv_on", "lora", *WORDS)


class Engine:
    """A model with its scheduler, at one end of a connection. Raises what loading raises."""

    def __init__(self, connection: Connection[ToEngine], start: Start) -> None:
        self._connection, self._start = connection, start
        self._notices: list[str] = []
        self._lora = adapter_files(start.words.get("lora", ()))
        self._flags = Flags(start.cancel_path)
        words = {word: x for word, x in start.words.items() if word not in MODEL_WORDS}
        request = request_of(words)
        if start.n_ctx and start.words.get("device", "cpu") == "cpu":
            config = ModelConfig.from_metadata(open_gguf(Path(start.model)).metadata)
            check_memory(config, request, start)
        drafting = draft_request(start)
        if self._lora:
            check_adapters(open_gguf(Path(start.model)), self._lora)
        self._send(Loading(f"loading {Path(start.model).name}"))
        self._model = load(
            start.model,
            threads=start.threads or None,
            notice=self._notices.append,
            device=start.words.get("device", "cpu"),
            kv_on=start.words.get("kv_on", "auto"),
            lora=self._lora,
        )
        draft = None if drafting is None else drafting.open(self._load_draft)
        self._n_ctx = start.n_ctx or fitting_size(self._model, request, start.parallel, draft)
        if start.n_ctx:
            self._notices += notices_of(self._model, replace(request, n_ctx=start.n_ctx), start)
        self._compile(request)
        if isinstance(draft, DraftModel):
            store = Ram()
            store.check(draft.model.config, draft.size_for(self._n_ctx))
            self._rehearse(draft.model, rehearsals(draft.model.path, store.types(), [], [], []))
        folder = Path(start.cache_path)
        self._library = Library(self._model, folder, start.cache_bytes, self._notices.append)
        self._preparing = RequestPreparer(self._model, self._n_ctx, words, self._library.answers)
        self._preparing.template.start()
        self._beginnings = Beginnings(self._model, self._library)
        self._scheduler = Scheduler(start.parallel, Batch(self._model), self._library, self._send)
        self._scheduler.notices = self._notices
        tell = self._notices.append
        self._drafts = None if draft is None else Drafts(draft, start.parallel, tell)
        self._answered = AnsweredChats(self._library.answers)
        self._pool = ThreadPoolExecutor(2, "kvarn-prepare")
        self._open: set[int] = set()
        """Requests that are waiting or running."""

    def _compile(self, request: ContextRequest) -> None:
        """Compile the kernels that requests usually need and this machine lacks."""
        if self._model.transformer.device is not CPU:
            return
        prefills = [request.prefill] if request.prefill else []
        if not prefills and self._n_ctx > LONG:
            prefills = [question_prefill(self._model, request, self._n_ctx)]
        methods = [request.attend], [request.keep], prefills, self._lora
        self._rehearse(self._model, rehearsals(self._model.path, request.store.types(), *methods))

    def _rehearse(self, model: Model, tasks: Sequence[Rehearsal]) -> None:
        for task in tasks:
            if not task.is_compiled(model):
                self._send(Loading(f"compiling kernels, on first use: {task.name}"))
                task(model)

    def _load_draft(self, path: Path) -> Model:
        """The model that drafts, whose contexts are in memory."""
        self._send(Loading(f"loading {path.name}"))
        return load(path, threads=self._start.threads or None, notice=self._notices.append)

    def run(self) -> None:
        """Serve until the server stops the engine, or is gone."""
        computing = threading.Thread(target=self._compute, name="kvarn-scheduler")
        signal.signal(signal.SIGTERM, lambda *_: self._scheduler.stop(Stop().seconds))
        self._send(self._ready())
        computing.start()
        try:
            for message in self._connection.messages(partial(reject, self._send)):
                self._take(message)
            if not self._scheduler.is_stopping:  # the server is gone, and cannot do it
                Path(self._start.cancel_path).unlink(missing_ok=True)
        finally:
            self._scheduler.stop(0.0)
            computing.join()
            self._pool.shutdown(cancel_futures=True)

    def _compute(self) -> None:
        try:
            on_engine(self._scheduler.run)
        finally:
            self._connection.close()  # after which `run` gets no more messages

    def _ready(self) -> Ready:
        model = self._model
        file, template = model.file, model.chat_template
        return Ready(
            name=model.name,
            path=str(model.path),
            n_ctx=self._n_ctx,
            n_ctx_train=model.config.n_ctx_train,
            n_vocab=model.config.n_vocab,
            n_embd=model.config.n_embd,
            n_params=file.n_parameters,
            n_bytes=file.n_bytes,
            architecture=file.architecture,
            file_type=file.file_type,
            chat_template="" if template is None else template.source,
            notices=list(self._notices),
        )

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, Stop):
            self._scheduler.stop(message.seconds)
        elif isinstance(message, Generate):
            self._begin(message, lambda: self._answer(message))
        elif isinstance(message, Render):
            self._prepare(message.id, lambda: self._send(self._preparing.render(message)))
        elif isinstance(message, FindBeginnings):
            self._prepare(message.id, lambda: self._find_beginnings(message))
        elif isinstance(message, Embed):
            self._begin(message, lambda: self._embed(message))
        elif isinstance(message, ReadPack):
            self._begin(message, lambda: self._read_pack(message))
        elif isinstance(message, ListPacks):
            self._prepare(message.id, lambda: self._send(Packs(message.id, list_packs())))
        elif isinstance(message, RemovePack):
            self._prepare(message.id, lambda: self._remove_pack(message))
        elif isinstance(message, Remember):
            self._prepare(message.id, lambda: self._answered.remember(message))

    def _begin(self, asked: Slotted, prepare: Callable[[], None]) -> None:
        """Take a request that computes, if the queue has room."""
        most, id, slot = self._start.parallel + self._start.queue, asked.id, asked.slot
        if self._scheduler.is_stopping:
            self._send(Refused(id, "busy", "the server is ending"))
        elif not 0 <= slot < SLOTS:
            self._send(Refused(id, "engine", f"slot {slot}: expected 0 to {SLOTS - 1}"))
        elif len(self._open) >= most:
            line = f"{most} requests are waiting or running, the most there may be: try again later"
            self._send(Refused(id, "busy", line))
        else:
            self._open.add(id)
            self._prepare(id, prepare)

    def _prepare(self, id: int, work: Callable[[], None]) -> None:
        """Do `work` beside the passes, and refuse the request where it fails."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._send(refusal_of(id, error, "invalid"))

        self._pool.submit(run)

    def _answer(self, asked: Generate) -> None:
        prepared = self._preparing.generate(asked)
        ways = self._library, self._flags, self._send, self._answered.add, self._drafts
        self._scheduler.put(AnswerTask(prepared, *ways))

    def _find_beginnings(self, asked: FindBeginnings) -> None:
        if asked.prompt is None:
            digests = self._beginnings.all_digests()
        else:
            ids, pack = self._preparing.prompt_ids(asked.prompt, asked.reading)
            digests = self._beginnings.of_prompt(ids, pack)
        self._send(Digests(asked.id, digests))

    def _embed(self, asked: Embed) -> None:
        request = ContextRequest()
        texts = [
            self._preparing.ids(it, request, self._n_ctx, cuts=asked.truncate)
            for it in asked.prompts
        ]
        task = EmbedTask(asked, texts, self._model, self._flags, self._send)
        if task.notice not in self._notices:
            self._notices.append(task.notice)
        self._scheduler.put(task)

    def _read_pack(self, asked: ReadPack) -> None:
        prepared = self._preparing.read_pack(asked)
        self._scheduler.put(PackTask(prepared, self._model, self._flags, self._send))

    def _remove_pack(self, asked: RemovePack) -> None:
        with refuse_bad_pack(path := pack_folder(asked.name)):
            remove_pack(path)
        self._send(Packs(asked.id, list_packs()))

    def _send(self, message: msgspec.Struct) -> None:
        if isinstance(message, Done | Refused | Vectors):
            self._open.discard(message.id)
        with suppress(OSError):  # if the server is gone, `run` ends
            self._connection.send(message)


def main(descriptor: int) -> int:
    """Run an engine over the socket that has this descriptor; the exit code."""
    spell(as_flag)  # who started the server can change what messages name
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server, too, gets Ctrl-C, and says `Stop`
    connection = Connection[ToEngine](socket.socket(fileno=descriptor), ToEngine)
    try:
        start = connection.receive()
        if not isinstance(start, Start):
            return 1
        engine = text_encoder_engine(connection, start) or Engine(connection, start)
        engine.run()
    except Exception as error:
        if not isinstance(error, KvarnError):
            sys.excepthook(type(error), error, error.__traceback__)
        with suppress(OSError):
            connection.send(Refused(0, "engine", " ".join(message_of(error).split())))
        return 1
    return 0
