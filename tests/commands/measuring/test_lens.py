"""`kvarn lens`: its page holds what was recorded, whatever the text, and fetches nothing."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.cli import main
from kvarn.commands.measuring.lens.page import SCRIPTS, pack, pieces_of, render
from kvarn.commands.measuring.lens.view import View, usual_part
from kvarn.runtime.attend.selections import Selections, Source, selection_file
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.model import Model
from kvarn.system.errors import KvarnError

from ...conftest import ROOT
from .lens_page import Page, unpacked

METHOD = kvarn.Hash(budget=24, sink=4, window=16)
HOSTILE = (
    "</script><script>alert(1)</script><!--<script> ]]> &lt; {data} {{title}} \\u003c \u2028\n"
    "\0\x07\x1b[31m\r\x7f\x85 \u202eback\u2069 é漢字🙂 \ufffd\tend. "
)


@dataclass
class Recorded:
    path: Path
    model: Path
    selections: Selections
    tokens: list[int]


@pytest.fixture(scope="module")
def recorded(tiny: Model, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Five steps after a hostile text, the last of which was guessed wrong before."""
    path = tmp_path_factory.mktemp("lens") / "s.bin"
    context = tiny.context(2000, METHOD)
    context.prefill(tiny.tokenizer.encode(HOSTILE * 3, bos=True))
    with context.recording(path):
        for token in (60, 98, 300, 62):
            context.decode(token)
        context.decode(5, [6, 7])
        context.truncate(len(context.tokens) - 1)
        context.decode(8)
    return Recorded(path, tiny_path, Selections.read(path), list(context.tokens))


def made(recorded: Recorded, *options: str) -> tuple[Page, bytes]:
    out = recorded.path.with_name("page.html")
    words = ["lens", str(recorded.path), "-m", str(recorded.model), "-o", str(out), *options]
    assert main(words) == 0
    data = out.read_bytes()
    return Page(data.decode()), data


def read(recorded: Recorded) -> dict[int, dict[int, list[np.ndarray]]]:
    """Positions of each step's token → layer → lists, straight from the file."""
    found: dict[int, dict[int, list[np.ndarray]]] = {}
    for layer, steps in enumerate(recorded.selections.layers):
        for step in steps:
            if step.stored <= len(recorded.tokens):
                found.setdefault(step.stored - 1, {})[layer] = list(step.lists)
    return dict(sorted(found.items()))


def test_the_page_holds_what_was_recorded(recorded: Recorded) -> None:
    data = made(recorded, "--part", "16")[0].data
    found, n = read(recorded), len(recorded.tokens)
    assert len(found) == 5 and data["steps"] == list(found) == list(range(n - 5, n))
    assert (data["n_tokens"], data["part"], data["parts"]) == (n, 16, -(-n // 16))
    assert (data["layers"], data["heads"], data["of"]) == ([0, 1], 2, 5)
    overview = np.array(unpacked(data["overview"])).reshape(5, data["parts"])
    for row, packed, layers in zip(overview, data["lists"], found.values(), strict=True):
        every = np.concatenate([one for lists in layers.values() for one in lists])
        want, _ = np.histogram(every, np.arange(data["parts"] + 1) * 16)
        np.testing.assert_array_equal(row, want)
        numbers = iter(unpacked(packed))
        for lists in layers.values():
            assert next(numbers) == 1
            for one in lists:
                gaps = [next(numbers) for _ in range(next(numbers))]
                np.testing.assert_array_equal(np.cumsum(gaps), one)
        assert next(numbers, None) is None


def test_the_text_is_whole_and_escaped(recorded: Recorded, tiny: Model) -> None:
    page, raw = made(recorded)
    data = page.data
    text = "".join(data["pieces"][i] for i in unpacked(data["text"]))
    assert len(unpacked(data["text"])) == len(recorded.tokens)
    want = tiny.tokenizer.stream(special=True)
    plain = "".join(want.push(token) for token in recorded.tokens) + want.flush()
    for c in "\0\x07\x1b\r\x7f\x85\u202e\u2069":
        assert c in plain and c not in text
        plain = plain.replace(c, ascii(c)[1:-1])
    assert text == plain and HOSTILE[:40] in text and "é漢字🙂" in text
    # The parser sees two scripts, the data and the program, and nothing of the text.
    assert len(page.all("script")) == 2 and raw.count(b"</script>") == 2
    assert raw.count(b"<!--") == 0


def test_the_page_refers_to_nothing_outside(recorded: Recorded) -> None:
    page, raw = made(recorded)
    for tag, attributes, _ in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    style, program = page.all("style")[0], page.all("script")[1]
    for word in ("http:", "https:", "//cdn", "url(", "@import", "fetch(", "XMLHttpRequest",
                 "import(", "WebSocket", "innerHTML", "eval("):  # fmt: skip
        assert word not in style + program, word
    (policy,) = (a["content"] for t, a, _ in page.elements if a.get("http-equiv"))
    for kind, text in (("style", style), ("script", program)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'; ")
    assert all(name in raw.decode() for name in ("listsOf", "palette", "showWritten"))


def test_names_are_escaped(recorded: Recorded) -> None:
    old = recorded.selections
    source = Source(2, 2, '<b>"&\x1b', old.source.fingerprint, "</script>")
    view = View.of(Selections(source, old.layers, old.tokens), None, 0)
    page = Page(render(view, ["x"] * len(view.tokens), 1 << 25).html.decode())
    assert page.all("title") == page.all("h1") == ['What <b>"&\\x1b read']
    assert page.data["method"] == "</script>" and "b" not in [t for t, *_ in page.elements]


def test_a_page_stays_within_its_size(recorded: Recorded, capsys) -> None:
    selections, part = recorded.selections, usual_part(len(recorded.tokens))
    pieces = ["some text"] * len(recorded.tokens)
    whole = render(View.of(selections, part, 0), pieces, 1 << 25)
    assert whole.detailed == 5
    lists = Page(whole.html.decode()).data["lists"]
    for n in range(1, 5):
        most = len(whole.html) - sum(len(one) + 3 for one in lists[n:])
        page = render(View.of(selections, part, 0), pieces, most + 1)
        assert len(page.html) <= most + 1 and page.detailed == n
        assert Page(page.html.decode()).data["lists"] == lists[:n]
    with pytest.raises(KvarnError, match="one token take 1 MiB: give --size 1 or more"):
        render(View.of(selections, part, 0), pieces, 9000)
    made(recorded, "--skip", "3", "--size", "1")
    assert "page.html: " in (said := capsys.readouterr().err) and "2 of 5 generated" in said


def test_layers_that_did_not_choose_are_told_apart(tmp_path: Path) -> None:
    path, lists = tmp_path / "s", np.array([[0, 9], [3, 8]], np.uint32)
    with selection_file(path, Source(4, 2, "", "", ""), range(20)) as writer:
        for layer, stored in ((1, 10), (3, 10), (1, 11), (1, 30), (1, 0)):
            n = np.array([2, 1]) if stored else np.array([0, 0])
            writer.add(layer, stored, lists, n)
    view = View.of(Selections.read(path), 5, 0)
    assert (view.layers, view.steps, view.recorded) == ([1, 3], [9, 10], 2)
    assert view.numbers(9).tolist() == [1, 2, 0, 9, 1, 3, 1, 2, 0, 9, 1, 3]
    assert view.numbers(10).tolist() == [1, 2, 0, 9, 1, 3, 0]
    assert view.overview().tolist() == [[4, 2, 0, 0], [2, 1, 0, 0]]


def test_numbers_of_any_size_are_packed() -> None:
    numbers = [n for i in range(32) for n in (2**i - 1, 2**i)] + [2**32 - 1]
    assert unpacked(pack(np.array(numbers, np.uint32))) == numbers
    assert unpacked(pack(np.array([], np.uint32))) == []


@pytest.mark.parametrize(
    ("n", "part"), [(1, 32), (32 * 1024, 32), (32 * 1024 + 1, 64), (1 << 20, 1024)]
)
def test_parts_are_powers_of_two(n: int, part: int) -> None:
    assert usual_part(n) == part


def test_a_text_of_nothing_has_no_pieces(tiny: Model) -> None:
    assert pieces_of(tiny.tokenizer, []) == []
    assert pieces_of(tiny.tokenizer, tiny.tokenizer.encode("é")[:1]) == ["\ufffd"]


def refusal(capsys, *words: str) -> str:
    capsys.readouterr()
    assert main(["lens", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_cannot_be_shown_is_refused_in_one_line(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model = ["-o", str(tmp_path / "p.html")], ["-m", str(recorded.model)]
    file, copy = str(recorded.path), tmp_path / "copy.bin"
    with selection_file(copy, Source(2, 2, "", "", ""), [1, 2]):
        pass
    assert "nothing was selected" in refusal(capsys, str(copy), *out, *model)
    mini = str(default_model_path())
    told = refusal(capsys, file, *out, "-m", mini)
    assert f"recorded with {recorded.selections.source.model} (fingerprint " in told
    assert "give its file with -m FILE, found kvarn-mini.gguf (" in told
    assert refusal(capsys, file, *out) == told  # and nothing of a default model
    assert "5 generated tokens" in refusal(capsys, file, *out, *model, "--skip", "5")
    with selection_file(copy, Source(1, 1, "", "", ""), range(9000)) as writer:
        writer.add(0, 9000, np.zeros((1, 1), np.uint32), np.array([1]))
    assert "--part 3 or more" in refusal(capsys, str(copy), *out, *model, "--part", "2")
    assert "holds no selections" in refusal(capsys, *model, str(recorded.model), *out)
    assert "No such file" in refusal(capsys, str(tmp_path / "none"), *out, *model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.bin"]


def test_the_wheel_holds_the_parts_of_the_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["kvarn.commands.measuring.lens"]
    for name in ("page.html", "page.css", *SCRIPTS):
        assert (ROOT / "commands" / "measuring" / "lens" / name).is_file()
        assert any(fnmatch(name, pattern) for pattern in patterns)


def test_the_program_counts_what_numpy_counts(recorded: Recorded) -> None:
    """The page's own functions, run by Node."""
    node = shutil.which("node")
    if node is None or run_node(node, "console.log(typeof DecompressionStream)") != "function":
        pytest.skip("Node 18 or newer is not installed")
    page, _ = made(recorded, "--part", "16")
    asked = f"""{page.all("script")[1]}
    (async () => {{
      const data = {page.all("script")[0]}, found = [];
      for (const packed of data.lists) {{
        const lists = listsOf(await unpacked(packed), data.layers.length, data.heads);
        found.push(lists.map((heads) => heads.map((list) => [
          [...countsOf(list, data.part, data.parts)], [...readersOf([list, list], 30, 99)],
        ])));
      }}
      const text = await unpacked(data.text);
      console.log(JSON.stringify([found, [...text].map((i) => data.pieces[i]).join("")]));
    }})()"""
    found, text = json.loads(run_node(node, asked))
    n_parts = -(-len(recorded.tokens) // 16)
    for step, layers in zip(found, read(recorded).values(), strict=True):
        for heads, lists in zip(step, layers.values(), strict=True):
            for (counts, readers), one in zip(heads, lists, strict=True):
                assert counts == np.bincount(one // 16, minlength=n_parts).tolist()
                assert readers == (2 * np.isin(np.arange(30, 99), one)).tolist()
    assert HOSTILE[:40] in text


def run_node(node: str, program: str) -> str:
    done = subprocess.run(
        [node, "-"], input=program, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_browser_shows_the_page(recorded: Recorded) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    made(recorded, "--part", "16")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    page = recorded.path.with_name("page.html")
    done = subprocess.run(
        [chromium, *options, "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    shown = re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
    assert '<p id="problem" class="problem" hidden' in shown and "<main hidden" not in shown
    assert "<mark" in shown and "2 layers that chose, of 2 KV heads" in shown
    assert shown.count('aria-pressed="') == 6 and "<script" not in shown  # 1 of the style
