"""Conversations: what the context holds spells what the template renders, and little is re-read."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvarn
from kvarn.runtime.chat.conversation import Conversation, ConversationError
from kvarn.runtime.chat.sandbox.errors import TemplateError
from kvarn.runtime.chat.template import PLAIN_STOP, ChatTemplate
from kvarn.runtime.model import Model
from kvarn.runtime.tokenizer import ControlTexts

from .scripted import SPECIAL, WORDS, LongestMatch, ScriptedContext, spell

TURNS = (
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|e|>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


@cache
def template(source: str = TURNS) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


PLAIN = ChatTemplate.plain(ControlTexts())
LETTERS = [i for i in range(len(WORDS)) if i not in SPECIAL]
ANSWERS = st.lists(
    st.lists(st.sampled_from(LETTERS), min_size=1, max_size=8), min_size=2, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(ANSWERS, st.lists(st.text("ab .\n", max_size=8), min_size=4, max_size=4), st.booleans())
def test_context_spells_the_rendered_text_and_reads_only_what_is_new(
    answers: list[list[int]], texts: list[str], plain: bool
) -> None:
    context = ScriptedContext([list(a) for a in answers])
    used = PLAIN if plain else template()
    chat = Conversation(context, used)  # type: ignore[arg-type]
    previous = False
    for text, answer in zip(texts, answers):
        assert "".join(chat.ask(text)) == spell(answer)
        rendered = used.render(chat.messages[:-1])
        start = "<s>" if plain else ""
        assert spell(context.tokens) == start + rendered + spell(answer[:-1])
        assert chat.last is not None and chat.last.finish == "eos"
        if previous and not plain:
            # Read anew: the answer's last token and what follows it, never the answer itself.
            # (Fewer where that token and what follows are one word.)
            assert chat.last.read <= 1 + len(
                LongestMatch().encode(f"<|e|>u:{text}<|e|>a:", special=True)
            )
        previous = True


def test_answer_in_other_tokens_than_the_tokenizers_stays() -> None:
    spelt = [WORDS.index("a"), WORDS.index("b"), WORDS.index("a"), WORDS.index(".")]
    assert LongestMatch().encode("aba.", special=True) != spelt
    context = ScriptedContext([spelt, [0]])
    chat = Conversation(context, template())  # type: ignore[arg-type]
    list(chat.ask("b"))
    list(chat.ask("b"))
    assert spelt == context.tokens[7:11]


def test_changed_history_is_read_from_the_change_on() -> None:
    context = ScriptedContext([[0], [0], [0], [0]])
    chat = Conversation(context, template(), system="ab")  # type: ignore[arg-type]
    list(chat.ask("a"))
    list(chat.ask("b"))
    chat.undo()
    assert [m["content"] for m in chat.messages] == ["a", "a"]
    list(chat.ask("b."))
    assert chat.last is not None and chat.last.reused > 8
    chat.system = "b"
    list(chat.ask("a"))
    assert chat.last.reused <= 4


def test_tokens_of_messages_that_were_removed_are_not_counted() -> None:
    context = ScriptedContext([[0], [0], [0]])
    chat = Conversation(context, template(), base=2)  # type: ignore[arg-type]
    context.tokens += [0, 0]  # a pack's
    assert chat.n_tokens == 2
    list(chat.ask("a"))
    after_first = chat.n_tokens
    assert after_first == len(context.tokens)
    list(chat.ask("b"))
    assert chat.n_tokens == len(context.tokens) > after_first
    chat.system = "ab"
    assert chat.n_tokens < after_first
    chat.system = None
    assert chat.n_tokens == len(context.tokens)
    chat.undo()
    # The answer's last token and its end have been read by now.
    text = template().render(chat.messages, add_generation_prompt=False)
    assert spell(context.tokens[2 : chat.n_tokens]) == text.removeprefix("<s>")
    chat.undo()
    assert (chat.n_tokens, chat.last) == (2, None)
    list(chat.ask("b"))
    chat.reset()
    assert (chat.n_tokens, chat.last) == (2, None)


def test_a_message_that_was_not_read_is_no_last_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ScriptedContext([[0], [0]])
    chat = Conversation(context, template())  # type: ignore[arg-type]
    list(chat.ask("a"))

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(context, "prefill", stopped)
    with pytest.raises(KeyboardInterrupt):
        list(chat.ask("b"))
    assert (len(chat.messages), chat.last) == (2, None)


def test_a_context_that_cannot_be_cut_back_is_read_anew() -> None:
    context = ScriptedContext([[0], [0], [0]], evicts=True)
    chat = Conversation(context, template())  # type: ignore[arg-type]
    list(chat.ask("a"))
    list(chat.ask("b"))
    assert chat.last is not None and chat.last.reused > 5
    chat.undo()
    list(chat.ask("b."))
    assert chat.last.reused == 0
    assert spell(context.tokens) == template().render(chat.messages[:-1])


def test_a_stopped_answer_is_kept_as_far_as_it_came() -> None:
    context = ScriptedContext([[0, 1, 2, 3], [0]])
    chat = Conversation(context, template())  # type: ignore[arg-type]
    answer = chat.ask("b")
    assert next(answer) + next(answer) == "ab"
    answer.close()
    assert chat.messages[-1] == {"role": "assistant", "content": "ab"}
    list(chat.ask("a"))
    assert chat.last is not None and chat.last.read < 10


def test_nothing_shown_nothing_kept() -> None:
    class Interrupted(ScriptedContext):
        def prefill(self, ids: Sequence[int], progress: Any = None) -> None:
            progress(1, len(ids))

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    chat = Conversation(Interrupted([[0]]), template())  # type: ignore[arg-type]
    with pytest.raises(InterruptedError):
        list(chat.ask("b", stop))
    assert chat.messages == []


def test_regenerate_keeps_the_old_answer_where_there_is_no_new_one() -> None:
    context = ScriptedContext([[0], [1]])
    chat = Conversation(context, template(), kvarn.Sampler(seed=5))  # type: ignore[arg-type]
    list(chat.ask("b"))
    context.most_tokens = 3
    with pytest.raises(ConversationError, match="tokens, which leaves no room"):
        list(chat.regenerate())
    assert chat.messages[-1]["content"] == "a"
    context.most_tokens = 100
    list(chat.regenerate())
    assert chat.messages[-1]["content"] == "b"
    assert context.seeds == [5, 7]
    assert len(chat.messages) == 2


def test_empty_conversations_have_nothing_to_take_back() -> None:
    chat = Conversation(ScriptedContext([]), template())  # type: ignore[arg-type]
    with pytest.raises(ConversationError, match="nothing to undo"):
        chat.undo()
    with pytest.raises(ConversationError, match="nothing to answer"):
        chat.regenerate()


def test_a_refused_message_is_taken_back() -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}x"
    chat = Conversation(ScriptedContext([[0]]), template(source))  # type: ignore[arg-type]
    list(chat.ask("a"))
    with pytest.raises(TemplateError):
        list(chat.ask("b"))
    assert [m["content"] for m in chat.messages] == ["a", "a"]


def test_saved_conversations_come_back(tmp_path: Path) -> None:
    chat = Conversation(ScriptedContext([[0]]), template(), system="é")  # type: ignore[arg-type]
    list(chat.ask("b\n"))
    chat.save(tmp_path / "c.json")
    other = Conversation(ScriptedContext([]), template())  # type: ignore[arg-type]
    other.load(tmp_path / "c.json")
    assert (other.system, other.messages) == (chat.system, chat.messages)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"messages": 1}',
        b'{"messages": [1]}',
        b'{"messages": [{}]}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": 1}]}',
        b'{"messages": [], "system": 1}',
        b'{"messages": [{"role": "user", "content": "", "x": ""}]}',
    ],
)
def test_other_files_are_no_conversations(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    chat = Conversation(ScriptedContext([]), template(), system="s")  # type: ignore[arg-type]
    chat.messages = [{"role": "user", "content": "a"}]
    with pytest.raises(ConversationError, match=r"c\.json: not a saved conversation"):
        chat.load(path)
    assert chat.system == "s" and len(chat.messages) == 1


def test_a_real_context_gives_what_a_fresh_one_gives(tiny: Model) -> None:
    # Oracle: the same tokens prefilled at once into an empty context.
    greedy = kvarn.Sampler(temp=0)
    chat = Conversation(tiny.context(512), PLAIN, greedy, [PLAIN_STOP], max_tokens=6)
    for text in ("Hello", "Who are you?", "Why é?"):
        answer = "".join(chat.ask(text))
        prompt = chat.context.tokens[: chat.prompt[1]]
        fresh = tiny.context(512).generate(prompt, max_tokens=6, sampler=greedy, stop=[PLAIN_STOP])
        assert answer == "".join(fresh)
    read = chat.context.stats.prefilled_tokens
    assert read <= chat.prompt[1] + 3  # each token once, plus the unread last ones of answers


def test_a_model_without_a_template_gets_the_plain_one(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the text at which its answers end, beside those that are given."""
    context, stops = tiny.context(512), []
    generate = context.generation
    monkeypatch.setattr(
        context, "generation", lambda *given: (stops.append(given[3]), generate(*given))[1]
    )
    chat = kvarn.Conversation(context, max_tokens=2)
    assert chat.template.source == PLAIN.source and tiny.chat_template is None
    for stop in ("word", ["a", "b"], ()):
        chat.stop = stop
        "".join(chat.ask("a"))
    assert stops == [["word", PLAIN_STOP], ["a", "b", PLAIN_STOP], [PLAIN_STOP]]


@pytest.mark.data
@pytest.mark.parametrize(
    ("vocabulary", "name"),
    [
        ("phi-3", "microsoft-Phi-3.5-mini-instruct"),
        ("llama-bpe", "meta-llama-Llama-3.2-3B-Instruct"),
        ("qwen2", "Qwen-Qwen2.5-7B-Instruct"),
        ("llama-spm", "mistralai-Mistral-Nemo-Instruct-2407"),
        ("llama-spm", None),
        ("gpt-2", None),
    ],
)
def test_real_vocabularies_and_templates_read_no_answer_again(
    vocabulary: str, name: str | None, data_dir: Path
) -> None:
    tokenizer = kvarn.load_tokenizer(data_dir / "vocab" / f"ggml-vocab-{vocabulary}.gguf")
    bos, eos = (
        None if i is None else tokenizer.piece(i).decode()
        for i in (tokenizer.bos_id, tokenizer.eos_id)
    )
    used = PLAIN
    if name is not None:
        source = (data_dir / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
        used = ChatTemplate(source, bos_token=bos, eos_token=eos)

    # Spelt letter by letter, as no tokenizer would.
    answers = [
        [tokenizer.encode(letter)[-1] for letter in text]
        for text in ("Hello, my friend.", "I am.\n\nAnd you?", "x")
    ]
    context = ScriptedContext(answers, tokenizer=tokenizer)
    chat = Conversation(context, used)  # type: ignore[arg-type]
    for text in ("Hi", "How are you?", "Good"):
        held = len(context.tokens)
        list(chat.ask(text))
        assert chat.last is not None and chat.last.reused == held
