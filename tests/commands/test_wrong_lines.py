"""Wrong command lines, each answered by one line that names the mend to someone without context."""

from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.options.foreign import FOREIGN
from kvarn.commands.parser import build_parser
from kvarn.runtime.keep import KEEPS

SEE = "; see `kvarn run --help`"
USAGE = {
    "run --cxt 5": "run has no option '--cxt': did you mean --ctx? See `kvarn run --help`",
    "run --prom x": "run has no option '--prom': did you mean --prompt? See `kvarn run --help`",
    "run --ctx 12x": f"--ctx: expected a whole number from 0 to 2147483647, found '12x'{SEE}",
    "run --temp hot": f"--temp: expected a number, found 'hot'{SEE}",
    "run --method tpok": "--method: expected auto, full, hash, magicpig, quest, topk, found "
    "'tpok': did you mean topk? See `kvarn run --help`",
    "run -ctk q3": f"-ctk: expected f16, q8_0, q4_0, found 'q3'{SEE}",
    "run -p": f"--prompt needs a value: -p TEXT{SEE}",
    "run --stats=yes": f"--stats takes no value: found 'yes'{SEE}",
    "run -p x -f t.txt": f"give one of --prompt and --file, not both{SEE}",
    "run -m a.gguf -hf a/b": f"give one of --model and -hf, not both{SEE}",
    "run t.txt -p x y": "no word is expected where 'y' stands: texts with spaces need quotes" + SEE,
    "run -p Once upon": "MODEL: there is no file 'upon': give a GGUF file, -hf USER/REPO, or put a "
    f"text with spaces in quotes{SEE}",
    "run org/model -p x": "MODEL: there is no file 'org/model': for a model of the Hugging Face "
    f"hub, use -hf org/model{SEE}",
    "run -p x -ngl 99": "-ngl: kvarn puts all layers on one device: omit it, and give --device "
    f"cuda for a GPU{SEE}",
    "run -p x --device gpu": "--device: expected cpu, cuda, found 'gpu': did you mean "
    "cpu? See `kvarn run --help`",
    "run -p x -mg 1": "run has no -mg: kvarn computes on the CPU, or with --device cuda (run, "
    f"chat, bench …) on one GPU{SEE}",
    "run -p x -fa off": f"-fa: kvarn always computes attention this way: omit it{SEE}",
    "run -p x --keep 4": f"--keep: found '4', expected {', '.join(KEEPS)}: `--keep "
    f"streaming` always keeps the first 4 tokens{SEE}",
    "run -p x --no-mmap": f"run has no --no-mmap: kvarn maps model files; omit it{SEE}",
    "run -p x -cnv": f"run has no -cnv: use `kvarn chat`{SEE}",
    "run -p x --grammar-file=g": "run has no --grammar-file: kvarn cannot constrain what is "
    f"generated{SEE}",
    "quantize a b --tpye q8_0": "quantize has no option '--tpye': did you mean --type? See "
    "`kvarn quantize --help`",
    "quantize a b": "kvarn quantize needs --type T; see `kvarn quantize --help`",
    "pack": "kvarn pack needs ACTION, one of build, ls, info, verify, rm, export, import; see "
    "`kvarn pack --help`",
    "pack lst": "pack has no action 'lst': did you mean ls? See `kvarn pack --help`",
    "pack export x": "kvarn pack export needs -o FILE; see `kvarn pack export --help`",
    "rnu -p x": "there is no command 'rnu': did you mean run? See `kvarn --help`",
    "pull a/b": "there is no command 'pull': did you mean `kvarn hf-pull`? See `kvarn --help`",
    "t.gguf": "there is no command 't.gguf': did you mean `kvarn run t.gguf`? See `kvarn --help`",
    "--ctx 5 run": "there is no option '--ctx': other options follow the command; see "
    "`kvarn --help`",
    "inspect -hf a/b": "inspect has no option '-hf': did you mean -h? See `kvarn inspect --help`",
}
"""Exit code 2."""
REFUSED = {
    "run -m gone.gguf -p x": "no such file: gone.gguf; `kvarn ls` lists the models on this machine",
    "run gone.gguf -p x": "no such file: gone.gguf; `kvarn ls` lists the models on this machine",
    "run -f gone.txt": "gone.txt: no such file or folder",
    "run -f empty.txt": "the prompt from empty.txt is empty: expected a text",
    "run -p x --system y": "--system has no effect without --instruct",
    "run -p x --budget 1%": "--budget has no effect with --method full: it belongs to --method "
    "auto or hash or quest or topk",
    "tokenize -f gone.txt": "gone.txt: no such file or folder",
    "perplexity t.gguf -f gone.txt": "gone.txt: no such file or folder",
    "imatrix -f t.gguf -o o": "t.gguf is a model, expected a text: give the model before -f, or -m",
}
"""Exit code 1."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("text")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "t.gguf").write_bytes(b"GGUF" + bytes(60))


@pytest.mark.parametrize("line", USAGE)
def test_wrong_usage_names_the_mend(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert capsys.readouterr() == ("", f"kvarn: {USAGE[line]}\n")


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_done_names_the_mend(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 1
    assert capsys.readouterr() == ("", f"kvarn: {REFUSED[line]}\n")


def test_an_option_of_others_is_not_one_of_ours() -> None:
    """Or the words about it would never be said."""
    for command in ("run", "chat"):
        (actions,) = (a for a in build_parser(command)._actions if a.dest == "command")
        assert not FOREIGN.keys() & actions.choices[command]._option_string_actions.keys()
