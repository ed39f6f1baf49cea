"""Questions asked through a chat template: the parts of a prompt, and the copier's answers."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.evals.quality import EvalError, Plan, plan
from kvarn.evals.quality.chat import HIDDEN, INTRODUCTIONS, Chat, parted
from kvarn.evals.quality.folder import ContextFolder
from kvarn.evals.quality.reading import tokenize_sample
from kvarn.evals.tasks import ALL_TASKS, Filler, Plain, Question, Sample
from kvarn.runtime.attend import Hash
from kvarn.runtime.chat.sandbox.errors import TemplateError
from kvarn.runtime.chat.template import ChatTemplate
from kvarn.runtime.context.reading.prompt import prompt_ids
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.system.errors import KvarnError

from .copier import write_copier
from .runs import FULL, HASH, STREAMING, answers_in, run
from .test_recall import codes

TEMPLATE = (
    "<bos>{% for m in messages %}[{{ m.role }}]{{ m.content }}<bos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
BOS = 257
SEVERAL = replace(HASH, attend=Hash(budget=200, sink=4, window=16))


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The copier, with a template."""
    path = tmp_path_factory.mktemp("models") / "chatting.gguf"
    write_copier(path, TEMPLATE)
    return load(path)


def asked(rng: random.Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Codes, asked in a sentence before the answer begins; a control token in the context."""
    sample = codes(rng, n_chars, n_questions, filler)
    first = replace(sample.parts[0], text=sample.parts[0].text + "\n<bos>")
    questions = [replace(q, text=f"?\n{q.text}") for q in sample.questions]
    return Sample((first, *sample.parts[1:]), tuple(questions))


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setitem(plan.ALL_TASKS, "asked", asked)
    arms = (FULL, SEVERAL, STREAMING)
    return Plan(("asked",), (1200,), arms, Plain(), "plain", 1, 4, asked="decoded", chat=True)


def with_template(model: Model, source: str, monkeypatch: pytest.MonkeyPatch) -> Model:
    template = ChatTemplate(source, bos_token=None, eos_token=None)
    monkeypatch.setitem(model.__dict__, "chat_template", template)
    return model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is the number of the lamp? It is", ("What is the number of the lamp?", "It is")),
        ("Q: the lamp?\nA:", ("Q: the lamp?", "A:")),
        ("Tell me all.\nThe lamp has", ("Tell me all.", "The lamp has")),
        ("Ann lives in", ('Complete this sentence: "Ann lives in …"', "Ann lives in")),
    ],
)
def test_a_question_is_asked_and_its_answer_begun(text: str, expected: tuple[str, str]) -> None:
    assert parted(text) == expected


def test_every_task_has_its_introduction() -> None:
    assert INTRODUCTIONS.keys() <= ALL_TASKS.keys()


def test_the_parts_are_the_tokens_of_one_prompt(
    chatting: Model, wanted: Plan, tmp_path: Path
) -> None:
    """Bytes are tokens here, so that the parts have the ids of the whole."""
    chat, cell = Chat.of(chatting), wanted.cells()[0]
    folder = ContextFolder(tmp_path / "one")
    read = tokenize_sample(chatting, folder, wanted, cell, 0, chat)
    text, questions = folder.sample(lambda: pytest.fail("it is there"))
    assert 0.98 * 1200 <= len(read.ids) <= 1200
    for question, ids in zip(questions, read.question_ids, strict=True):
        message = {"role": "user", "content": f"{HIDDEN}\n\n{text}\n?"}
        prompt = chatting.chat_template.render([message]) + question.text.removeprefix("?\n")
        assert read.ids + ids == prompt_ids(chatting.tokenizer, prompt)
        # What the template wrote is a control token, and what the context spells out is not.
        assert [read.ids.count(BOS), ids.count(BOS)] == [1, 1]
    assert text.endswith("<bos>") and read.stop == ()


def test_a_chat_is_answered_by_every_method(chatting: Model, wanted: Plan, tmp_path: Path) -> None:
    rows, _ = run(chatting, wanted, tmp_path)
    assert [row.score for row in rows[:2]] == [1, 1] and rows[2].score < 1
    assert all(row.as_dict()["chat"] for row in rows)
    plain, _ = run(chatting, replace(wanted, chat=False, arms=(FULL,)), tmp_path)
    assert plain[0].score == 1 and not plain[0].as_dict()["chat"]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_answer_ends_with_the_turn_and_not_with_a_line(
    chatting: Model, wanted: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of answers that are not what is expected: first to the limit of tokens, then with a model
    whose turn ends with a line break."""

    def wrong(rng: random.Random, n_chars: int, n: int, filler: Filler) -> Sample:
        sample = asked(rng, n_chars, n, filler)
        questions = [Question(q.text, q.reply, ("no",)) for q in sample.questions]
        return Sample(sample.parts, tuple(questions))

    monkeypatch.setitem(plan.ALL_TASKS, "asked", wrong)
    wanted = replace(wanted, arms=(FULL,))
    lines = []
    for work in ("one", "two"):
        run(chatting, wanted, tmp_path / work)
        (folder,) = (tmp_path / work).iterdir()
        _, questions = ContextFolder(folder).sample(lambda: pytest.fail("it is there"))
        replies = [question.reply for question in questions]
        lines.append([answer.text for answer in answers_in(folder)])
        ends = frozenset({chatting.tokenizer.encode("\n")[0]})
        monkeypatch.setattr(chatting.tokenizer, "eog_ids", ends)
    assert all(text.startswith(f"{reply}\n") for text, reply in zip(lines[0], replies, strict=True))
    assert lines[1] == replies


def test_models_without_a_usable_template_are_refused(
    tiny: Model, chatting: Model, wanted: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(model: Model) -> KvarnError:
        with pytest.raises(KvarnError) as error:
            run(model, wanted, tmp_path)
        return error.value

    message = "has no chat template: ask without --chat, or take an instruct model"
    assert message in str(refused(tiny))
    for source in ("{{ messages[0].content | upper }}", "nothing"):
        with_template(chatting, source, monkeypatch)
        assert "the chat template changes a message" in str(refused(chatting))
    with_template(chatting, "{{ raise_exception('no') }}", monkeypatch)
    assert isinstance(refused(chatting), TemplateError)
    assert not list(tmp_path.iterdir())
    with_template(chatting, "{{ messages[0].content[:900] }}", monkeypatch)
    assert isinstance(refused(chatting), EvalError)
