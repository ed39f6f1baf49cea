"""The page at `/`: it loads nothing from elsewhere, and the keyboard alone works all of it."""

import re
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser

import httpx

from kvarn.serve.page.files import FOLDER, PAGE, STATIC

from ..conftest import ROOT
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
