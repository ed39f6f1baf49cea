"""Chat templates: turn a conversation into text of the form that the model was trained on.

A GGUF file carries the template as Jinja source in `tokenizer.chat_template`, variants of it in
`tokenizer.chat_template.NAME`. Renders like transformers' `apply_chat_template`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...system.errors import KvarnError
from ...system.text import one_line
from ..tokenizer import ControlTexts, Rendered
from .quoting import Quoting, texts_in
from .sandbox.errors import TemplateError
from .sandbox.limits import MAX_SOURCE
from .sandbox.renderer import Renderer

if TYPE_CHECKING:
    from ..model import Model

KEY = "tokenizer.chat_template"
_TOOL_VARIANT = "tool_use"
# Keys of a message for the model's reasoning; templates read the first.
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]

# For models without a template. Nothing in it needs special tokens, so any model can read it;
# an answer ends where the next user turn would begin.
PLAIN_SOURCE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% elif message.role == 'user' %}### User:\n{{ message.content }}\n\n"
    "{% else %}### Assistant:\n{{ message.content }}\n\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)
PLAIN_STOP = "### User:"


class ChatTemplate:
    """A chat template, for any number of conversations and threads.

    `bos_token` and `eos_token` are the texts that templates insert; None leaves them undefined.
    `control` are the control tokens that messages may spell out: `Tokenizer.control`.
    `variants` are other templates by name: `tool_use` is taken when tools are given.
    `now` is the clock behind `strftime_now`.

    Templates are programs from untrusted files: each is compiled and rendered in a process of its
    own with limits (`sandbox`), which starts at the first rendering, or at `start`.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None,
        eos_token: str | None,
        control: ControlTexts | None = None,
        variants: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > MAX_SOURCE:
            raise TemplateError(
                f"chat template: has {len(source):,} characters, expected at most {MAX_SOURCE:,}"
            )
        self.source = source
        self.stop: tuple[str, ...] = ()
        """Texts at which an answer ends, beside the stop strings of its user."""
        self._now = now
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: text for name, text in tokens.items() if text is not None}
        self._control = control or ControlTexts()
        self._renderer = Renderer(source)
        self.variants = {
            name: ChatTemplate(
                text, bos_token=bos_token, eos_token=eos_token, control=control, now=now
            )
            for name, text in (variants or {}).items()
        }

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        bos_token: str | None,
        eos_token: str | None,
        control: ControlTexts | None = None,
    ) -> "ChatTemplate | None":
        """The template of a GGUF file, or None where it has none.

        A file with variants only uses the one named `default`.
        """
        variants = {
            key.removeprefix(KEY + "."): _text(metadata, key)
            for key in metadata
            if key.startswith(KEY + ".")
        }
        source = _text(metadata, KEY) if KEY in metadata else variants.get("default")
        if source is None:
            return None
        return cls(
            source, bos_token=bos_token, eos_token=eos_token, control=control, variants=variants
        )

    @classmethod
    def of(cls, model: "Model") -> "ChatTemplate":
        """The template of a model, or the stand-in."""
        return model.chat_template or cls.plain(model.tokenizer.control)

    @classmethod
    def plain(cls, control: ControlTexts) -> "ChatTemplate":
        """The stand-in for models without a template: `### User:` / `### Assistant:`."""
        template = cls(PLAIN_SOURCE, bos_token=None, eos_token=None, control=control)
        template.stop = (PLAIN_STOP,)
        return template

    @property
    def tells_tools(self) -> bool:
        """Whether it tells the model of tools."""
        return _TOOL_VARIANT in self.variants or "tools" in self.source

    def start(self) -> None:
        """Starts the process that renders, without waiting for it."""
        self._renderer.start()

    def check(self) -> None:
        """Raises `TemplateError` where the source is no Jinja template."""
        self._renderer.check()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> Rendered:
        """The text of `messages`, each a mapping with `role`, `content` and perhaps other keys.

        `tools` are JSON schemas, `extra` further variables of the template. A control token that
        one of them spells out is text: the template does not see it, and the result has it quoted.
        Raises `TemplateError` where the template is not valid, refuses the conversation, fails, or
        does not end.
        """
        if tools and _TOOL_VARIANT in self.variants:
            variant = self.variants[_TOOL_VARIANT]
            return variant.render(
                messages, add_generation_prompt=add_generation_prompt, tools=tools, **extra
            )
        values = {
            "documents": None,
            **extra,
            "messages": [_message(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            values = _plain(values)
            quoting = Quoting(self._control, list(texts_in(values)), self.source)
            variables = {**self._tokens, **_plain(values, quoting.mask)}
            return quoting.unmask(self._renderer.render(variables, self._now()))
        except KvarnError:
            raise
        except Exception as error:  # values nested too deeply, or invalid names
            line = one_line(" ".join(str(error).split()) or type(error).__name__, 300)
            raise TemplateError(f"chat template: rendering failed: {line}") from error


def _message(message: Message) -> dict[str, Any]:
    """The message as templates expect it: no None, the reasoning under all its names."""
    if not isinstance(message, Mapping):
        raise TemplateError(
            f"chat template: a message is of type {type(message).__name__}, expected a mapping "
            "with role and content"
        )
    fields = {key: value for key, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return fields


def _plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """`value` rebuilt of plain JSON types, so that a template never holds a live object; its texts
    as `text` gives them."""
    if isinstance(value, str):
        return text(value)
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key, text): _plain(item, text) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, text) for item in value]
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata[key]
    if not isinstance(value, str):
        raise TemplateError(
            f"chat template: {key} is of type {type(value).__name__}, expected UTF-8 text"
        )
    return value
