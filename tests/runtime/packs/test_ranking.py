"""Of many packs, those that a question fits: which one holds the fact is known."""

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest

import kvarn
from kvarn.evals.tasks import TASKS, Prose
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.model import Model
from kvarn.runtime.packs import ranking
from kvarn.runtime.packs.notes import finished_packs
from kvarn.runtime.packs.pack import build_pack
from kvarn.runtime.packs.ranking import ask_packs, rank_packs, word_scores, words_of
from kvarn.runtime.store import Disk, PackError
from kvarn.runtime.store.disk.info import pack_head, pack_ids
from kvarn.system.errors import KvarnError

from ..reading import ids_of

NOVEL = Path(__file__).parents[1] / "golden" / "two_cities.txt"
N_PACKS, N_QUESTIONS = 12, 3


@pytest.fixture(scope="module")
def mini() -> Model:
    return kvarn.load()


@pytest.fixture(scope="module")
def library(mini: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    """Twelve packs with three facts each between sentences of a novel; (pack, question, answer)."""
    folder, filler = tmp_path_factory.mktemp("library"), Prose([NOVEL.read_text("utf-8")])
    asked = []
    for n in range(N_PACKS):
        sample = TASKS["needle"](Random(f"ask {n}"), 1500, N_QUESTIONS, filler)
        build_pack(mini, folder / f"{n:02}", sample.context)
        asked += [(f"{n:02}", one.text, one.answers[0]) for one in sample.questions]
    return folder, asked


def requests(folder: Path) -> list[ContextRequest]:
    return [ContextRequest(store=Disk(path, read_only=True)) for path in sorted(folder.iterdir())]


def test_the_pack_that_holds_the_fact_comes_first(mini: Model, library: tuple[Path, list]) -> None:
    folder, asked = library
    packs = requests(folder)
    first = [Path(rank_packs(mini, packs, question)[0].pack).name for _, question, _ in asked]
    n_right = sum(name == right for name, (right, _, _) in zip(first, asked))
    assert n_right >= math.ceil(0.9 * len(asked)), [*zip(first, asked)]


def test_a_gain_is_the_difference_of_two_log_likelihoods(
    mini: Model, library: tuple[Path, list]
) -> None:
    folder, ((_, question, _), *_) = library
    ids, gains = mini.tokenizer.encode(f"\n{question}"), {}
    for fit in rank_packs(mini, requests(folder)[:3], question):
        gains[Path(fit.pack).name] = fit.gain

    def mean(read: list[int]) -> float:
        """Token by token, in float64."""
        context, sums = mini.context(1024), 0.0
        context.prefill(read + ids[:1])
        for token in ids[1:]:
            logits = context.logits.astype(np.float64)
            sums += logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            context.prefill([token])
        return sums / (len(ids) - 1)

    bos = [mini.tokenizer.bos_id] if mini.tokenizer.add_bos else []
    for name, gain in gains.items():
        expected = mean(pack_ids(folder / name).tolist()) - mean(bos)
        assert gain == pytest.approx(expected, abs=2e-3)


def test_words_choose_the_candidates_of_many_packs(
    mini: Model, library: tuple[Path, list], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same first pack with a pass of the model after a quarter of the packs."""
    folder, asked = library
    packs, n_read = requests(folder), []
    whole = [rank_packs(mini, packs, question)[0].pack for _, question, _ in asked[::6]]
    monkeypatch.setattr(ranking, "CANDIDATES", 3)
    for (_, question, _), first in zip(asked[::6], whole):
        fits = rank_packs(mini, packs, question, progress=lambda done, n: n_read.append(n))
        assert (fits[0].pack, len(fits)) == (first, 3)
    assert {*n_read} == {3}
    assert len(rank_packs(mini, packs, "Zxq qqz?")) == N_PACKS  # no text has these words


def test_the_best_packs_answer_as_they_answer_alone(
    mini: Model, library: tuple[Path, list]
) -> None:
    folder, ((right, question, _), *_) = library
    first, second = ask_packs(mini, folder, question, best=2, max_tokens=8)
    assert Path(first.pack).name == right and first.gain > second.gain
    for one in (first, second):
        assert one.answer == kvarn.ask(mini, one.pack, question, 8)
    (alone,) = ask_packs(mini, [folder / "03"], question, max_tokens=8)
    assert Path(alone.pack).name == "03"


def test_bm25_is_its_formula(tiny: Model, tmp_path: Path) -> None:
    texts = ["the mill, the Mill", "the river and its millers", "a wheel " * 30]
    packs = [tmp_path / str(n) for n in range(3)]
    for pack, text in zip(packs, texts):
        build_pack(tiny, pack, text)
    scores = word_scores("The MILL?", packs, tiny.tokenizer)
    lengths = np.array([len(bytes_of(tiny, pack)) for pack in packs], float)
    expected = np.zeros(3)
    for counts in ([2, 1, 0], [2, 0, 0], [2, 0, 0]):  # the, mill, the mill
        n_with, tf = sum(c > 0 for c in counts), np.array(counts, float)
        idf = math.log(1 + (3 - n_with + 0.5) / (n_with + 0.5))
        expected += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * lengths / lengths.mean()))
    assert scores == pytest.approx(expected)


def test_neighbours_tell_texts_apart_that_have_all_words(tiny: Model, tmp_path: Path) -> None:
    packs = [tmp_path / str(n) for n in range(2)]
    for pack, text in zip(packs, ["an old bed, a red mill", "a red bed, an old mill"]):
        build_pack(tiny, pack, text)
    there, here = word_scores("the old mill", packs, tiny.tokenizer)
    assert here > there


def bytes_of(model: Model, pack: Path) -> bytes:
    return b"".join(map(model.tokenizer.piece, pack_ids(pack).tolist()))


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Who owns the mill?", ["who", "who owns", "owns", "owns the", "the", "the mill", "mill"]),
        ("Straße 12", ["strasse", "strasse 12", "12"]),
        ("谁拥有磨坊", ["谁拥", "拥有", "有磨", "磨坊"]),
        ("GPU的温度", ["gpu", "的温", "温度"]),
        ("坊", ["坊"]),
        ("?!", []),
    ],
)
def test_words_of_a_question(question: str, words: list[str]) -> None:
    assert words_of(question) == words


def test_words_stand_between_any_signs(tiny: Model, tmp_path: Path) -> None:
    texts = ["He said “mill” twice", "windmills", "磨坊在河边", "Ärger am Mühlbach"]
    packs = [tmp_path / str(n) for n in range(4)]
    for pack, text in zip(packs, texts):
        build_pack(tiny, pack, text)

    def where(question: str) -> list[int]:
        return np.flatnonzero(word_scores(question, packs, tiny.tokenizer)).tolist()

    assert (where("Mill?"), where("磨坊"), where("ÄRGER")) == ([0], [2], [3])


def test_wrong_packs_are_refused(tiny: Model, mini: Model, tmp_path: Path) -> None:
    build_pack(tiny, tmp_path / "a", ids_of(tiny, 30))
    with pytest.raises(PackError, match="model"):
        ask_packs(mini, tmp_path, "Who?")
    (tmp_path / "empty").mkdir()
    with pytest.raises(KvarnError, match="there are no packs in"):
        ask_packs(mini, tmp_path / "empty", "Who?")
    with pytest.raises(KvarnError, match="best is 0"):
        ask_packs(tiny, tmp_path, "Who?", best=0)


def stopped(done: int, total: int) -> None:
    if done >= 1024:
        raise KeyboardInterrupt


def test_packs_that_are_not_finished_are_not_asked(tiny: Model, tmp_path: Path) -> None:
    tiny.context(64, store=Disk(tmp_path / "begun")).close()
    with pytest.raises(KvarnError, match=r"no pack in .* is finished"):
        ask_packs(tiny, tmp_path, "Who?")
    with pytest.raises(KeyboardInterrupt):
        build_pack(tiny, tmp_path / "part", ids_of(tiny, 1500), progress=stopped)
    assert pack_head(tmp_path / "part").n_tokens
    build_pack(tiny, tmp_path / "read", ids_of(tiny, 30))
    lines: list[str] = []
    assert finished_packs(tmp_path, lines.append) == [tmp_path / "read"]
    assert lines == [f"{tmp_path}: 2 of 3 packs are not finished and are not asked"]


def test_damaged_packs_of_a_folder_are_told_and_not_asked(tiny: Model, tmp_path: Path) -> None:
    for name in ("half", "whole", "wrong"):
        build_pack(tiny, tmp_path / name, ids_of(tiny, 30))
    (tmp_path / "half" / "commits").unlink()
    (tmp_path / "wrong" / "pack.json").write_text("{")
    lines: list[str] = []
    assert finished_packs(tmp_path, lines.append) == [tmp_path / "whole"]
    assert [line.partition(":")[0] for line in lines] == [
        f"pack {tmp_path / name}" for name in ("half", "wrong")
    ]
    assert all(line.endswith("; it is not asked") for line in lines)
    (fit,) = ask_packs(tiny, tmp_path, "Who?", max_tokens=1)
    assert fit.pack == str(tmp_path / "whole")
