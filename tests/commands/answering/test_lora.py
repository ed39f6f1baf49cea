"""`--lora`: adapters on the command line, and those that packs name."""

import json
from pathlib import Path

import pytest

from kvarn.runtime.gguf import open_gguf

from ...models.adapters import random_pairs, write_adapter
from ..pack_runner import Kvarn


@pytest.fixture
def adapter(tiny_path: Path, tmp_path: Path) -> Path:
    """An adapter that changes every layer of the tiny model a lot."""
    with open_gguf(tiny_path) as file:
        shapes = {n: t.shape for n, t in file.tensors.items() if n.endswith("ffn_down.weight")}
        return write_adapter(
            tmp_path / "adapter.gguf",
            file.architecture,
            random_pairs(shapes, 4, size=20.0),
            alpha=8.0,
        )


def test_run_adds_the_adapter_times_its_scale(run: Kvarn, adapter: Path) -> None:
    asked = ["run", *run.model, "-p", "Words", "-n", "12", "--temp", "0"]
    plain, adapted, nothing = (
        run(*asked, *more) for more in ((), ("--lora", str(adapter)), ("--lora", f"{adapter}:0"))
    )
    assert plain[0] == adapted[0] == nothing[0] == 0
    assert adapted[1] != plain[1]
    assert nothing[1] == plain[1]


def test_a_pack_brings_its_adapters(run: Kvarn, adapter: Path) -> None:
    named = f"{adapter}:0.5"
    run.build("p", "--lora", named)
    assert f"adapters    {named}" in run("pack", "info", "p")[1]
    asked = ["run", "--pack", "p", "-p", "Words", "-n", "4", "--temp", "0"]
    code, alone, err = run(*asked)
    assert code == 0, err
    assert f"using the adapters of the pack: {named}" in err
    assert run(*asked, *run.model, "--lora", named)[:2] == (0, alone)
    code, _, err = run(*asked, *run.model)
    assert code == 1
    assert f"it was made with adapters {named}" in err and "give the same --lora" in err
    assert err.count("\n") == 1
    run.build("plain")
    code, _, err = run(*asked[:2], "plain", *asked[3:], *run.model, "--lora", named)
    assert (code, err.count("\n")) == (1, 1), err
    assert "it was made with adapters none" in err and "leave out --lora" in err


def test_each_pack_is_asked_with_its_own_adapters(run: Kvarn, adapter: Path) -> None:
    run.build("plain")
    run.build("adapted", "--lora", str(adapter))
    run.build("half", "--lora", f"{adapter}:0.5")
    names, question = ("plain", "adapted", "half"), ("-n", "6", "Who?", "--json")
    alone = [json.loads(run("ask", name, *question)[1])["answers"][0] for name in names]
    assert len({str(one["passages"]) for one in alone}) == 3
    for more in ((), run.model):  # the model's place says nothing of adapters
        code, out, err = run("ask", *names, *question, *more)
        assert code == 0, err
        assert json.loads(out)["answers"] == alone


def test_an_adapter_is_no_model(run: Kvarn, adapter: Path) -> None:
    target, named = str(adapter.with_name("out.gguf")), str(adapter)
    for words in (
        ["run", "-m", named, "-p", "Words"],
        ["chat", "-m", named],
        ["embed", "-m", named, "Words", "--pooling", "mean"],
        ["convert", named, target],
        ["convert", named, target, "--type", "q8_0"],
        ["quantize", named, target, "--type", "q8_0"],
    ):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "the file is an adapter, which changes a model" in err and "--lora FILE" in err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            ["--lora", "missing.gguf"],
            "missing.gguf: no such file or folder; expected an adapter, FILE",
        ),
        (["--lora", "{model}"], "it is no low-rank adapter: found general.type"),
        (["--lora", "{model}:inf"], "found scale inf, expected a finite number"),
        (["--lora", "{adapter}:1e99"], "its numbers times the scale 1e+99 exceed float32"),
        (["--lora", "{adapter}:-3e38"], "its numbers times the scale -3e+38 exceed float32"),
        (["--lora", "{adapter}", "--device", "cuda"], "--lora has no kernels for GPUs"),
    ],
)
def test_mistakes_are_one_line(run: Kvarn, adapter: Path, given: list[str], expected: str) -> None:
    words = [word.format(model=run.model[1], adapter=adapter) for word in given]
    code, _, err = run("run", *run.model, "-p", "Words", *words)
    is_usage = given[1].endswith(":inf") or "cuda" in given
    assert code == (2 if is_usage else 1)
    assert expected in err
    assert err.count("\n") == 1
