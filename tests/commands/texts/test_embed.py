"""`kvarn embed` and `kvarn rerank`: what they write, and one line for what they cannot do."""

import json
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.cli import main
from kvarn.runtime.home import last_model, models_made

from ...models.tiny_text_encoders import TinyEncoder, write

TEXTS = ["the man eats bread", "sky is blue", "a mill by the river"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("m") / "tiny.gguf", TinyEncoder()))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        write(tmp_path_factory.mktemp("r") / "tiny.gguf", TinyEncoder(labels=1, pooling=None))
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of a command line."""

    def typed(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        except SystemExit as end:
            code = int(str(end.code))
        written = capsys.readouterr()
        return code, written.out, written.err

    return typed


def test_vectors_are_json_lines_or_a_numpy_file(model: str, run: Run, tmp_path: Path) -> None:
    expected = kvarn.load_embedder(model).embed(TEXTS)
    code, out, _ = run("embed", model, *TEXTS)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["text"] for line in lines] == TEXTS
    np.testing.assert_array_equal(np.float32([line["embedding"] for line in lines]), expected)
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n")
    code, out, err = run("embed", "-m", model, "-f", str(path), "-o", str(tmp_path / "v.npy"))
    assert (code, out) == (0, "") and "3 vectors of 64 numbers" in err
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)


def test_a_query_sorts_texts_by_cosine(model: str, run: Run) -> None:
    vectors = kvarn.load_embedder(model).embed([*TEXTS, "the bread"]).astype(float)
    cosines = vectors[:-1] @ vectors[-1]
    code, out, _ = run("embed", model, TEXTS[0], "--query", "the bread", *TEXTS[1:])
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0 and [text for _, text in rows] == [TEXTS[i] for i in np.argsort(-cosines)]
    np.testing.assert_allclose([float(x) for x, _ in rows], sorted(cosines)[::-1], atol=1e-4)


def test_a_reranker_sorts_texts_by_its_score(reranker: str, run: Run) -> None:
    scores = kvarn.load_embedder(reranker).rank("bread", TEXTS)
    code, out, _ = run("rerank", reranker, "bread", *TEXTS)
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0 and [text for _, text in rows] == [TEXTS[i] for i in np.argsort(-scores)]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("embed", 2, "no model is named: expected a GGUF file first"),
        ("embed MODEL", 2, "there are no texts"),
        ("embed MODEL  ", 1, "text 1 is empty"),
        ("embed nowhere.gguf sky", 1, "nowhere.gguf: no such file"),
        ("embed MODEL sky --query ", 2, "--query is empty"),
        ("embed MODEL sky --pooling rank", 2, "--pooling"),
        ("embed RERANKER sky", 1, "scores texts for a query and makes no vectors"),
        ("embed MODEL sky -o sky.txt", 2, "-o sky.txt: expected a NumPy file"),
        ("embed MODEL -f - -f -", 2, "standard input (-) is named more than once"),
        ("embed sky", 2, "the first word, 'sky', is the MODEL"),
        ("rerank MODEL sky river", 1, "(bert) has no classifier that scores texts"),
        ("rerank DECODER sky river", 1, "(llama) has no classifier that scores texts"),
        ("rerank RERANKER", 2, "no query is given"),
        ("rerank RERANKER sky", 2, "there are no texts"),
        ("run MODEL -p hi", 1, "is a text encoder (bert), which makes vectors"),
        ("chat MODEL", 1, "is a text encoder (bert), which makes vectors"),
        ("pack build -m MODEL -f TEXT -o pack", 1, "is a text encoder (bert), which makes vectors"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: str, code: int, line: str, model: str, reranker: str, tiny_path: Path, run: Run,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "text.txt").write_text("the sky")
    given = {"MODEL": model, "RERANKER": reranker, "TEXT": str(tmp_path / "text.txt")}
    given["DECODER"] = str(tiny_path)
    ended, out, err = run(*(given.get(word, word) for word in words.split(" ")))
    assert ended == code and not out
    assert line in err and err.count("\n") == 1


def test_vectors_without_room_name_the_file(model: str, run: Run, tmp_path: Path) -> None:
    texts, limits = [f"sky {i}" for i in range(20)], resource.getrlimit(resource.RLIMIT_FSIZE)
    assert run("embed", model, *texts)[0] == 0  # whatever is kept of kernels is kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        code, out, err = run("embed", model, *texts, "-o", str(tmp_path / "v.npy"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, out, err) == (1, "", f"kvarn: {tmp_path / 'v.npy'}: File too large\n")
    assert not list(tmp_path.glob("*.part"))


def test_what_makes_vectors_is_not_the_last_model(
    model: str, reranker: str, tiny_path: Path, run: Run, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))
    copies = {name: tmp_path / f"{name}.gguf" for name in ("text", "vectors", "scores")}
    for name, source in (("text", tiny_path), ("vectors", model), ("scores", reranker)):
        code, _, err = run("convert", str(source), str(copies[name]), "--type", "f16")
        assert code == 0, err
    assert last_model() == copies["text"]
    assert copies["vectors"] in models_made()
    assert run("convert", model, str(copies["text"]), "--type", "f16")[0] == 0
    assert last_model() is None  # another file took its place


def test_long_texts_are_cut_if_the_user_says_so(model: str, run: Run) -> None:
    long = "the man eats bread " * 20
    code, _, err = run("embed", model, long)
    assert code == 1 and "text 1 has 82 tokens, and the model reads at most 48" in err
    code, out, _ = run("embed", model, long, "--truncate")
    assert code == 0 and len(json.loads(out)["embedding"]) == 64


def test_inspect_says_that_kvarn_runs_it(model: str, run: Run) -> None:
    code, out, _ = run("inspect", model)
    assert code == 0 and "runs in kvarn    yes" in out


def test_build_compiles_what_texts_need(model: str, run: Run) -> None:
    code, out, _ = run("build", model)
    assert code == 0 and "[1/1] texts: " in out
    for options in (["--kv-type", "f16"], ["--method", "topk"]):
        code, _, err = run("build", model, *options)
        assert code == 1 and "text encoder (bert), which makes vectors and generates no text" in err
