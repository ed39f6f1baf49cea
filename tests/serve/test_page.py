"""The page at `/`: it loads nothing from elsewhere, and the keyboard alone works all of it."""

import json
import re
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser

import httpx
import pytest

from kvarn.runtime.lens.passages import Lens, Passage
from kvarn.runtime.serving.protocol import Refused
from kvarn.serve.page.files import FOLDER, PAGE, STATIC

from ..conftest import ROOT
from .browser import CHROMIUM, Browser, browser
from .fake_engine import FakeEngine
from .live import serving

OTHER_HOST = re.compile(r"""(?:\b(?:https?|wss?):|["'(=]\s*)//[a-z0-9]""", re.IGNORECASE)


class Links(HTMLParser):
    """What a page refers to, and whether anything in it runs or looks by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.inline: list[str] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attrs:
            if name in ("src", "href", "action", "srcset", "poster", "data"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(name)

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style") and data.strip():
            self.inline.append(data)
        self._tag = ""


def page() -> Links:
    return Links((FOLDER / PAGE).read_text(encoding="utf-8"))


def own_scripts() -> dict[str, str]:
    """Those that are kvarn's own."""
    names = [name for name in STATIC if name.endswith(".js") and "/" not in name]
    return {name: (FOLDER / name).read_text(encoding="utf-8") for name in names}


def test_the_page_and_its_files_are_served(http: httpx.Client, engine: FakeEngine) -> None:
    answer = http.get("/")
    assert answer.status_code == 200 and answer.text == (FOLDER / PAGE).read_text("utf-8")
    assert answer.headers["content-type"].startswith("text/html")
    for name in STATIC:
        answer = http.get(f"/static/{name}")
        assert (answer.status_code, answer.content) == (200, (FOLDER / name).read_bytes())
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"].startswith(kind)


def test_the_policy_allows_this_server_alone(http: httpx.Client, engine: FakeEngine) -> None:
    for path in ("/", "/static/page.js"):
        headers = http.get(path).headers
        policy = {
            words[0]: words[1:]
            for words in map(str.split, headers["content-security-policy"].split(";"))
        }
        assert policy.pop("img-src") == ["'self'", "data:"]
        assert {tuple(sources) for sources in policy.values()} == {("'none'",), ("'self'",)}
        assert policy["default-src"] == policy["frame-ancestors"] == ["'none'"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_head_has_the_headers_and_no_body(http: httpx.Client, engine: FakeEngine) -> None:
    head, whole = http.head("/"), http.get("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == whole.headers["etag"]
    assert head.headers["content-length"] == str(len(whole.content))


def test_a_known_file_is_not_sent_again(http: httpx.Client, engine: FakeEngine) -> None:
    for path in ("/", "/static/page.css"):
        tag = http.get(path).headers["etag"]
        for known in (tag, f"W/{tag}", f'"x", {tag}'):
            again = http.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        assert http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_no_other_file_is_served(http: httpx.Client, engine: FakeEngine) -> None:
    for name in (
        "files.py", "__init__.py", "page.html", "../page.html", "%2e%2e/app.py", "vendor/",
        "vendor/LICENSE-pico", "page.js/", "/etc/passwd", "",
    ):  # fmt: skip
        assert http.get(f"/static/{name}").status_code == 404, name
    assert http.post("/", json={}).status_code == 405


def test_the_page_needs_no_key_and_what_it_asks_does() -> None:
    with (
        serving(FakeEngine(), keys=("secret",)) as address,
        httpx.Client(base_url=address) as http,
    ):
        assert http.get("/").status_code == 200
        assert {http.get(f"/static/{name}").status_code for name in STATIC} == {200}
        asked = http.get("/props"), http.get("/packs")
        assert [answer.status_code for answer in asked] == [401, 401]
        assert "secret" not in http.get("/").text


def test_all_that_the_page_names_is_there() -> None:
    served = {f"/static/{name}" for name in STATIC}
    links = [link for link in page().links if not link.startswith("data:")]
    assert links and set(links) <= served
    assert page().inline == []
    used = {link.removeprefix("/static/") for link in links}
    ids, wanted = page().ids, set[str]()
    assert len(ids) == len(set(ids))
    for text in own_scripts().values():
        used |= {name.removeprefix("./") for name in re.findall(r'from "([^"]+)"', text)}
        asked = re.findall(r'(?:byId|getElementById)\("([^"]+)"\)', text)
        wanted |= set(asked)
    assert used == set(STATIC)
    assert wanted and wanted <= set(ids)


def test_nothing_names_another_host() -> None:
    for name in (PAGE, "page.css", *own_scripts()):
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert OTHER_HOST.findall(text) == [], name
    pico = (FOLDER / "vendor/pico.min.css").read_text(encoding="utf-8")
    assert "@import" not in pico
    sources = re.findall(r"url\(\s*[\"']?([^:)]+)", pico)
    assert set(sources) == {"data"}


def test_the_wheel_holds_all_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["kvarn.serve.page"]
    files = [path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()]
    held = {str(path) for path in files if any(fnmatch(str(path), one) for one in patterns)}
    licences = {f"vendor/LICENSE-{name}" for name in ("pico", "marked", "dompurify")}
    assert held == {PAGE, *STATIC, *licences}


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
