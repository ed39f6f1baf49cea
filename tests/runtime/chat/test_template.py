"""Chat templates against transformers (golden), a second Jinja set-up, and hostile templates."""

import hashlib
import json
import re
import threading
from datetime import datetime
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvarn.runtime.chat.sandbox.errors import TemplateError
from kvarn.runtime.chat.template import PLAIN_STOP, ChatTemplate
from kvarn.runtime.tokenizer import ControlTexts
from kvarn.system.errors import KvarnError

GOLDEN = json.loads(
    (Path(__file__).parent / "golden" / "templates.json").read_text(encoding="utf-8")
)
USER = [{"role": "user", "content": "hi"}]


def now() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5)


def template(source: str, **options: object) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", **options)


def render(source: str, messages: list = USER, **extra: object) -> str:
    return template(source).render(messages, **extra)


@pytest.fixture(scope="module")
def templates(data_dir: Path) -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((data_dir / "templates").glob("*.jinja"))
    }


@pytest.mark.data
@pytest.mark.parametrize("name", GOLDEN["cases"])
def test_renders_like_transformers(name: str, templates: dict[str, str]) -> None:
    # Oracle: digests of transformers' texts, made by golden/make_templates.py.
    ours = ChatTemplate(templates[name], bos_token=GOLDEN["bos"], eos_token=GOLDEN["eos"], now=now)
    for (conversation, tools, generation, extra), expected in zip(
        GOLDEN["variants"], GOLDEN["cases"][name], strict=True
    ):
        messages = GOLDEN["conversations"][conversation]
        tool_list = GOLDEN["tools"] if tools else None

        def ask(messages=messages, tools=tool_list, generation=generation, extra=extra) -> str:
            return ours.render(messages, tools=tools, add_generation_prompt=generation, **extra)

        if expected.startswith("!"):
            with pytest.raises(TemplateError) as caught:
                ask()
            assert expected.partition(": ")[2].split("\n")[0] in str(caught.value)
        else:
            digest = hashlib.sha256(ask().encode()).hexdigest()[:16]
            assert digest == expected, (conversation, tools, generation, extra)


def reference(source: str) -> jinja2.Template:
    """The smallest Jinja set-up that templates ask for, apart from the code under test."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda x, **o: json.dumps(x, **{"ensure_ascii": False, **o})
    environment.globals |= {"raise_exception": refuse, "strftime_now": now().strftime}
    # A tag of its own that only passes its text on is an `if` that holds.
    source = re.sub(r"(\{%-?\s*)generation(\s*-?%\})", r"\1if true\2", source)
    source = re.sub(r"(\{%-?\s*)endgeneration(\s*-?%\})", r"\1endif\2", source)
    return environment.from_string(source)


@pytest.fixture(scope="module")
def pairs(templates: dict[str, str]) -> list[tuple[ChatTemplate, jinja2.Template]]:
    return [
        (ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=now), reference(source))
        for source in templates.values()
    ]


@pytest.mark.data
@settings(max_examples=6, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.booleans())
def test_any_text_renders_like_plain_jinja(pairs: list, texts: list[str], system: bool) -> None:
    roles = (["system"] if system else []) + ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts)]
    for ours, plain in pairs:
        try:
            expected = plain.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                bos_token="<s>",
                eos_token="</s>",
            )
        except (jinja2.TemplateError, TypeError):
            with pytest.raises(TemplateError):
                ours.render(messages)
        else:
            assert ours.render(messages) == expected


def test_tojson_leaves_html_and_unicode_alone() -> None:
    assert render("{{ '<é>' | tojson }}") == '"<é>"'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}") == json.dumps(
        {"b": 1, "a": [2]}, indent=2
    )
    assert render("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}") == (
        '{"a":2,"b":1}'
    )


def test_clock_break_and_generation_tag() -> None:
    assert template("{{ strftime_now('%d %b %Y') }}", now=now).render([]) == "02 Jan 2026"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"


def test_messages_lose_empty_keys_and_gain_reasoning_names() -> None:
    source = "{{ 'tool_calls' in messages[0] }} {{ messages[0].reasoning_content }}"
    messages = [{"role": "user", "content": "", "tool_calls": None, "thinking": "hm"}]
    assert render(source, messages) == "False hm"


def test_unset_tokens_are_undefined() -> None:
    source = "{{ bos_token is defined }}{{ bos_token }}"
    assert ChatTemplate(source, bos_token=None, eos_token=None).render([]) == "False"


def test_loop_variables_survive_the_step_counter() -> None:
    source = (
        "{% for x in 'abc' %}{{ loop.index }}{{ loop.last }}{{ loop.length }}"
        "{{ loop.previtem }}{{ loop.nextitem }}{% else %}none{% endfor %}"
        "{% for x in nothing %}x{% else %}none{% endfor %}"
        "{% for x in [1, 2, 3] if x > 1 %}{{ loop.index0 }}{{ x }}{% endfor %}"
        "{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ none }}{% endfor %}"
    )
    assert render(source) == reference(source).render()


def test_refusal_names_the_reason() -> None:
    with pytest.raises(TemplateError, match="refuses the conversation: roles must alternate"):
        render("{{ raise_exception('roles must\n alternate') }}")


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(TemplateError, match="refuses the conversation") as refused:
        render("{{ raise_exception('x' * 100000) }}")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in y %}",
        "{{ 1 +",
        "{% nonsense %}",
        "{% include 'other' %}",
        "{{ messages.x.y.z }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing() }}",
        "{{ 'a' | no_such_filter }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_broken_templates_are_told_in_one_line(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert str(caught.value).startswith("chat template: ")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, KvarnError)


def test_large_numbers_in_messages_are_no_runaway() -> None:
    tools = [{"maximum": 2**63, "price": 1e300}]
    source = "{% macro m(x) %}{{ x }}{% endmacro %}{% for t in tools %}{{ m(t.maximum) }} {{ t.maximum | tojson }} {{ '{}'.format(t.maximum) }}{% endfor %}"  # noqa: E501
    assert render(source, tools=tools) == " ".join([str(2**63)] * 3)


def test_long_conversations_fit_the_limits() -> None:
    source = "{% for m in messages %}{% for n in messages %}{% endfor %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 1000}] * 1000
    assert len(render(source, messages)) == 1_000_000


def test_rich_objects_reach_templates_as_plain_data() -> None:
    class Text(str):
        pass

    class Rich:
        pass

    messages = [{"role": Text("user"), "content": [Rich(), (1, True, 2.5)]}]
    assert render("{{ messages[0].content }}", messages) == "['<Rich>', [1, True, 2.5]]"


def test_messages_must_be_mappings() -> None:
    with pytest.raises(TemplateError, match="type str, expected a mapping"):
        template("").render(["hello"])  # type: ignore[list-item]


def test_metadata_gives_template_and_variants() -> None:
    key = "tokenizer.chat_template"
    assert ChatTemplate.from_metadata({"general.name": "x"}, "<s>", "</s>") is None
    assert ChatTemplate.from_metadata({key + ".tool_use": "t"}, "<s>", "</s>") is None
    only = ChatTemplate.from_metadata({key + ".default": "d"}, "<s>", "</s>")
    assert only is not None and only.render(USER) == "d"
    both = ChatTemplate.from_metadata({key: "{{ bos_token }}", key + ".tool_use": "t"}, "<s>", None)
    assert both is not None
    assert both.render(USER) == "<s>"
    assert both.render(USER, tools=[{}]) == "t"
    with pytest.raises(TemplateError, match=r"tokenizer\.chat_template is of type bytes"):
        ChatTemplate.from_metadata({key: b"\xff"}, "<s>", "</s>")


def test_plain_template_marks_turns() -> None:
    messages = [{"role": "system", "content": "S"}, *USER, {"role": "assistant", "content": "A"}]
    text = ChatTemplate.plain(ControlTexts()).render([*messages, *USER])
    assert text == ("S\n\n### User:\nhi\n\n### Assistant:\nA\n\n### User:\nhi\n\n### Assistant:\n")
    assert PLAIN_STOP in text


def test_one_template_serves_several_threads() -> None:
    shared = template("{% for m in messages %}{{ m.content }}{% endfor %}")
    results: dict[int, str] = {}

    def work(i: int) -> None:
        results[i] = shared.render([{"role": "user", "content": str(i)}] * 200)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: str(i) * 200 for i in range(8)}
