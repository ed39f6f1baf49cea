"""The page in Chromium, by keyboard."""

import json

import pytest

from kvarn.runtime.lens.passages import Lens, Passage
from kvarn.runtime.serving.protocol import Refused

from .browser import CHROMIUM, Browser, browser
from .fake_engine import FakeEngine
from .live import serving


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


def test_from_a_document_to_its_answer_by_keyboard(chromium: Browser) -> None:
    engine = FakeEngine(answer=["The **mill**", " stands."])
    with serving(engine) as address:
        chromium.errors.clear()
        chromium.open(address)
        chromium.until("document.getElementById('model')?.textContent === 'toy'")
        chromium.tab_to("pack", shift=True)
        chromium.press("Tab")
        chromium.press("Enter")  # opens "Read a new one"
        chromium.tab_to("text")
        chromium.type("The mill stood by the river.")
        chromium.tab_to("name")
        chromium.type("mill")
        chromium.tab_to("read")
        chromium.press("Enter")
        chromium.until("document.activeElement?.id === 'question'")
        assert chromium.value("document.getElementById('pack').value") == "mill"
        chromium.type("Where is the mill?")
        chromium.press("Enter")
        chromium.until("document.querySelector('.assistant strong')?.textContent === 'mill'")
        chromium.until("document.getElementById('speed').textContent.includes('cached')")
        said = chromium.value("document.querySelector('.assistant').textContent.trim()")
        speed = chromium.value("document.getElementById('speed').textContent")
    assert said == "The mill stands."
    assert speed.startswith("8.0 tokens/s, 2 generated; 8 read, 2 cached")  # 2 in 0.25 s
    assert engine.stored == {"mill": len("The mill stood by the river.")}
    [(prompt, fields)] = engine.asked
    assert fields["reading"].pack == "mill"
    assert prompt.messages == [{"role": "user", "content": "Where is the mill?"}]
    assert chromium.errors == []


def test_a_file_that_the_server_converts_is_sent_as_it_is(chromium: Browser) -> None:
    """Unless a text is pasted in its place."""
    pytest.importorskip("markdownify", reason="the extra docs is not installed")
    choose = """{
        const files = new DataTransfer();
        files.items.add(new File(["<h1>Mill</h1>"], "mill.html"));
        const input = document.getElementById("file");
        input.files = files.files;
        input.dispatchEvent(new Event("change"));
    }"""
    is_read = "document.getElementById('read-status').textContent.startsWith('Read ')"
    engine = FakeEngine()
    with serving(engine) as address:
        chromium.errors.clear()
        chromium.open(address)
        chromium.until("document.getElementById('model')?.textContent === 'toy'")
        chromium.value("document.getElementById('new').open = true")
        chromium.value(choose)
        chromium.until("document.activeElement?.id === 'read'")
        chromium.press("Enter")
        chromium.until(is_read)
        assert engine.texts == {"mill.html": "# Mill\n"}
        chromium.value("document.getElementById('new').open = true")
        chromium.value(choose)
        chromium.until("document.activeElement?.id === 'read'")
        chromium.tab_to("text", shift=True)
        chromium.type("Pasted")
        chromium.tab_to("read")
        chromium.press("Enter")
        chromium.until("document.getElementById('read-status').textContent.startsWith('Read 6 ')")
    assert engine.texts == {"mill.html": "Pasted"}
    assert chromium.errors == []


def test_the_lens_shows_passages_by_keyboard(chromium: Browser) -> None:
    text = "It rained. The mill stood by the river. Nobody came."
    mill = Passage(3, 9, 0.75, " The mill stood by", "page 3")
    engine = FakeEngine(lens=Lens([mill, Passage(0, 2, 0.25, "<b>It</b>", "<i>x</i>, line 1")]))
    with serving(engine) as address:
        chromium.errors.clear()
        chromium.open(address)
        chromium.until("document.getElementById('model')?.textContent === 'toy'")
        chromium.value("document.getElementById('new').open = true")
        chromium.tab_to("text", shift=True)
        chromium.type(text)
        chromium.tab_to("read")
        chromium.press("Enter")
        chromium.until("document.activeElement?.id === 'question'")
        chromium.type("Where?")
        chromium.press("Enter")
        chromium.until("document.querySelectorAll('#passages button').length === 2")
        items = chromium.value("document.getElementById('passages').textContent")
        chromium.until("document.activeElement?.id === 'question'")
        chromium.tab_to("passage-1", shift=True)
        chromium.press("Enter")
        assert chromium.value("document.querySelector('#passage').textContent") == "<b>It</b>"
        chromium.tab_to("passage-0", shift=True)
        chromium.press("Enter")
        marked = chromium.value("document.querySelector('#passage mark').textContent")
        shown = chromium.value("document.querySelector('#passage').textContent")
        engine.lens = Lens(note="tokens were evicted")
        chromium.tab_to("question")
        chromium.type("And then?")
        chromium.press("Enter")
        told = "No passages: tokens were evicted."
        chromium.until(f"document.getElementById('lens-status').textContent === '{told}'")
        assert chromium.value("document.querySelectorAll('#passages button').length") == 0
    assert items == "75% page 3: The mill stood by25% <i>x</i>, line 1: <b>It</b>"
    assert (marked, shown) == (" The mill stood by", text)
    assert [fields["lens"] for _, fields in engine.asked] == [True, True]
    assert chromium.errors == []


def test_a_hostile_answer_runs_nothing(chromium: Browser) -> None:
    hostile = (
        "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
        '<a href="javascript:window.ran = 1" id="question" style="position: fixed">link</a>'
        "<iframe src='https://example.com'></iframe>\n\n![words](https://example.com/x.png) "
        "[run](javascript:window.ran=1) a<b style='color: red'>c **end**"
    )
    with serving(FakeEngine(answer=[hostile])) as address:
        chromium.errors.clear()
        chromium.open(address)
        chromium.until("document.getElementById('model')?.textContent === 'toy'")
        chromium.type("hi")
        chromium.press("Enter")
        chromium.until("document.querySelector('.assistant strong')?.textContent === 'end'")
        chromium.until("document.getElementById('speed').textContent.includes('cached')")
        made = chromium.value(
            "[...document.querySelectorAll('.assistant *')]"
            ".map(one => one.outerHTML.match(/^<[^>]*/)[0])"
        )
        said = chromium.value("document.querySelector('.assistant').textContent")
        assert chromium.value("window.ran") is None
    assert made and {*made} <= {"<p", "<strong", "<a"}  # no attribute, and nothing that loads
    assert "<script>window.ran = 1</script>" in said and "words run a<b" in said
    assert chromium.errors == []


def test_the_page_asks_for_a_key_and_keeps_it_for_the_tab(chromium: Browser) -> None:
    engine = FakeEngine()
    with serving(engine, keys=("secret",)) as address:
        chromium.open(address)
        chromium.until("document.activeElement?.id === 'key'")
        chromium.type("wrong")
        chromium.press("Enter")
        chromium.until("document.getElementById('model').textContent.includes('the key is wrong')")
        chromium.until("document.activeElement?.id === 'key'")
        chromium.type("secret")
        chromium.press("Enter")
        chromium.until("document.getElementById('model').textContent === 'toy'")
        assert chromium.value("document.getElementById('key-form').hidden")
        assert chromium.value("document.activeElement?.id") == "question"
        chromium.errors.clear()
        chromium.open(address)
        chromium.until("document.getElementById('model')?.textContent === 'toy'")
        stored = json.loads(chromium.value("JSON.stringify({...sessionStorage})"))
        assert chromium.value("localStorage.length") == 0
    assert stored == {"kvarn-key": "secret"}
    assert chromium.errors == []


def test_escape_stops_an_answer_and_a_refusal_is_told(chromium: Browser) -> None:
    engine = FakeEngine(answer=["word "] * 1000, pause=0.05)
    with serving(engine) as address:
        chromium.open(address)
        chromium.until("document.getElementById('model')?.textContent === 'toy'")
        chromium.type("hi")
        chromium.press("Enter")
        chromium.until("document.querySelector('.assistant')?.textContent.includes('word')")
        chromium.press("Escape")
        chromium.until("document.getElementById('speed').textContent === 'stopped'")
        chromium.tab_to("budget")
        chromium.type("many")
        chromium.tab_to("question", shift=True)
        chromium.type("again")
        engine.refusal = Refused(1, "invalid", "budget is 'many'")
        chromium.press("Enter")
        chromium.until("document.querySelector('.failed')?.textContent === \"budget is 'many'\"")
        assert chromium.value("document.getElementById('question').value") == "again"
    assert engine.cancelled >= 1
