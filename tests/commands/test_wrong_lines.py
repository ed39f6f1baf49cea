"""Wrong command lines, each answered by one line that names the mend to someone without context."""

from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands import COMMANDS
from kvarn.commands.parsing.foreign import COMMANDS_ELSEWHERE, ELSEWHERE, FOREIGN
from kvarn.commands.parsing.parser import build_parser
from kvarn.runtime.keep import KEEPS

SEE = "; see `kvarn run --help`"
PROMPT = 'give a prompt with -p "TEXT"'
USAGE = {
    "run --cxt 5": "run has no option '--cxt': did you mean --ctx? See `kvarn run --help`",
    "run --prom x": "run has no option '--prom': did you mean --prompt? See `kvarn run --help`",
    "run --ctx 12x": f"--ctx: expected a whole number from 0 to 2147483647, found '12x'{SEE}",
    "run -n abc": f"-n: expected a whole number from -1 to 2147483647, found 'abc'{SEE}",
    "run -c8x": f"-c: expected a whole number from 0 to 2147483647, found '8x'{SEE}",
    "run --n-predict=x": "--n-predict: expected a whole number from -1 to 2147483647, found 'x'"
    + SEE,
    "run -n 5 --max-tokens x": "--max-tokens: expected a whole number from -1 to 2147483647, found "
    f"'x'{SEE}",
    "run --temp hot": f"--temp: expected a number, found 'hot'{SEE}",
    "run --method tpok": "--method: expected auto, full, hash, magicpig, topk, found "
    "'tpok': did you mean topk? See `kvarn run --help`",
    "run -ctk q3": f"-ctk: expected f16, q8_0, q4_0, found 'q3'{SEE}",
    "run -p": f"-p needs a value: -p TEXT{SEE}",
    "run --stats=yes": f"--stats takes no value: found 'yes'{SEE}",
    "run -p x -f t.txt": f"give one of -p and -f, not both{SEE}",
    "run -m a.gguf -hf a/b": f"give one of -m and -hf, not both{SEE}",
    "run t.txt -p x y": "no word is expected where 'y' stands: texts with spaces need quotes" + SEE,
    "run t.txt -f t.txt y": "no word is expected where 'y' stands: texts with spaces need quotes"
    + SEE,
    "run t.gguf x": f"no word is expected where 'x' stands: {PROMPT}{SEE}",
    "chat t.gguf x": "no word is expected where 'x' stands: type your message, or pipe it; `kvarn "
    "run --instruct -p TEXT` answers one; see `kvarn chat --help`",
    "run -p Once upon": "MODEL: 'upon': no such file or folder; give a GGUF file or -hf USER/REPO; "
    f"texts with spaces need quotes{SEE}",
    "run Once": "MODEL: 'Once': no such file or folder; give a GGUF file or -hf USER/REPO; "
    f"{PROMPT}{SEE}",
    "pack ls empty a": "no word is expected where 'a' stands: expected FOLDER alone; see `kvarn "
    "pack ls --help`",
    "quantize a b c --type q8_0": "no word is expected where 'c' stands: expected IN.gguf OUT.gguf "
    "alone; see `kvarn quantize --help`",
    "run -p x --draft ngram --draft-max 100000": "--draft-max: expected a whole number from 1 to "
    f"31, found '100000'{SEE}",
    "run -p x --draft ngram --draft-min-match 0": "--draft-min-match: expected a whole number from "
    f"1 to 64, found '0'{SEE}",
    "ls x": "no word is expected where 'x' stands: omit it; see `kvarn ls --help`",
    "run org/model -p x": "MODEL: 'org/model': no such file or folder; for a model of the Hugging "
    f"Face hub, use -hf org/model{SEE}",
    "run -p x -ngl 99": "-ngl: kvarn puts all layers on one device: omit it, and give --device "
    f"cuda for a GPU{SEE}",
    "run -p x --device gpu": "--device: expected cpu, cuda, found 'gpu': did you mean "
    "cuda? See `kvarn run --help`",
    "run -p x -mg 1": "run has no -mg: kvarn computes on the CPU, or with --device cuda (run, "
    f"chat, bench …) on one GPU{SEE}",
    "run -p x -fa off": f"-fa: kvarn always computes attention this way: omit it{SEE}",
    "run -p x --keep 4": f"--keep: found '4', expected {', '.join(KEEPS)}: `--keep "
    f"streaming` always keeps the first 4 tokens{SEE}",
    "run -p x --no-mmap": f"run has no --no-mmap: kvarn maps model files; omit it{SEE}",
    "run -p x -cnv": f"run has no -cnv: use `kvarn chat`{SEE}",
    "run -p x --grammar-file=g": f"run has no --grammar-file: use --grammar FILE{SEE}",
    "quantize a b --tpye q8_0": "quantize has no option '--tpye': did you mean --type? See "
    "`kvarn quantize --help`",
    "quantize a b": "kvarn quantize needs --type T; see `kvarn quantize --help`",
    "pack": "kvarn pack needs ACTION, one of build, index, ls, info, verify, rm, export, import; "
    "see `kvarn pack --help`",
    "pack lst": "pack has no action 'lst': did you mean ls? See `kvarn pack --help`",
    "run -ctx 128": "run has no option '-ctx': did you mean --ctx? See `kvarn run --help`",
    "run -p x -method=topk": "run has no option '-method': did you mean --method? See `kvarn run "
    "--help`",
    "pack mv a b": "pack has no action 'mv', expected build, index, ls, info, verify, rm, export, "
    "import; see `kvarn pack --help`",
    "pack build t.gguf -o t": "kvarn pack build needs -f FILE or --files-from LIST; see `kvarn "
    "pack build --help`",
    "pack-build -f t.txt": "there is no command 'pack-build': did you mean `kvarn pack build`? See "
    "`kvarn --help`",
    "kvarn run -p x": "there is no command 'kvarn': omit the second `kvarn`; see `kvarn --help`",
    "chat smollm": "MODEL: 'smollm': no such file or folder: did you mean smollm2? See `kvarn chat "
    "--help`",
    "serve --api_key x": "serve has no option '--api_key': did you mean --api-key? See `kvarn "
    "serve --help`",
    "serve -p 8080": "serve has no -p: use --port N; see `kvarn serve --help`",
    "pack export x": "kvarn pack export needs -o FILE; see `kvarn pack export --help`",
    "rnu -p x": "there is no command 'rnu': did you mean run? See `kvarn --help`",
    "pull a/b": "there is no command 'pull': did you mean `kvarn hf-pull`? See `kvarn --help`",
    "t.gguf": "there is no command 't.gguf': did you mean `kvarn run t.gguf`? See `kvarn --help`",
    "--ctx 5 run": "there is no option '--ctx': other options follow the command; see "
    "`kvarn --help`",
    "inspect -hf a/b": "inspect has no -hf: pull it with `kvarn hf-pull USER/REPO:QUANT`, then "
    "give its file; see `kvarn inspect --help`",
    "run -p x --json": "run has no --json: text goes to stdout as it is; --stats-json FILE "
    f"writes figures{SEE}",
    "run -p x --samplers top_q": "--samplers: samplers name 'top_q', expected some of penalties, "
    "dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature, adaptive_p: did you mean "
    "top_p? See `kvarn run --help`",
    "run -p x --context-shift": "run has no --context-shift: use --keep streaming --keep-budget N, "
    f"which goes on beyond --ctx{SEE}",
    "run -p x --num_ctx 9": f"run has no --num_ctx: use --ctx N{SEE}",
    "run -p x --top_p 1": "run has no option '--top_p': did you mean --top-p? See `kvarn "
    "run --help`",
    "run -p x --xyzzy": f"run has no option '--xyzzy'{SEE}",
    "chat -p x": "chat has no -p: type your message, or pipe it; `kvarn run --instruct -p TEXT` "
    "answers one; see `kvarn chat --help`",
    "pack build -p x": "pack build has no -p: use -f FILE; see `kvarn pack build --help`",
    "pack build --resume -f t.txt": "pack build has no --resume: the same command resumes; omit "
    "it; see `kvarn pack build --help`",
    "server": "there is no command 'server': did you mean `kvarn serve`? See `kvarn --help`",
    "list": "there is no command 'list': did you mean `kvarn ls`? See `kvarn --help`",
    "show": "there is no command 'show': did you mean `kvarn inspect`? See `kvarn --help`",
    "help rnu": "there is no command 'rnu': did you mean run? See `kvarn --help`",
}
"""Exit code 2."""
REFUSED = {
    "run -m gone.gguf -p x": "gone.gguf: no such file or folder; `kvarn ls` lists the models on "
    "this machine",
    "run gone.gguf -p x": "gone.gguf: no such file or folder; `kvarn ls` lists the models on "
    "this machine",
    "run -m empty -p x": "empty: found a directory, expected a GGUF file (no .gguf file is in it)",
    "run -m t.txt -p x": "t.txt: size: found 4 bytes, expected at least 16 (not a GGUF file)",
    "run -f gone.txt": "gone.txt: no such file or folder",
    "run -f empty.txt": "the prompt from empty.txt is empty: expected a text",
    "run -p x --pack ./none": "pack none: no such folder; `kvarn pack ls` lists the packs",
    "pack info ./none": "pack none: no such folder; `kvarn pack ls` lists the packs",
    "pack rm ./none": "pack none: no such folder; `kvarn pack ls` lists the "
    "packs; nothing was removed",
    "eval --work t.txt": "--work t.txt is a file: expected a folder, or a name for a new one",
    "eval --text empty": "--text empty: found no *.txt, expected texts, documents or folders",
    "run -p x --kv t.txt": "--kv t.txt is a file: expected a folder, or a name for a new one",
    "tokenize -f gone.txt": "gone.txt: no such file or folder",
    "tokenize -f gone.txt -f t.txt": "gone.txt: no such file or folder",
    "tokenize -f t.txt -f latin.txt": "latin.txt is not UTF-8 text: byte 0xe9 at offset 3; `iconv "
    "-f latin1 -t utf-8 FILE > OUT.txt` makes one of Latin-1",
    "tokenize -f binary": "binary holds binary data (byte 0x8d at offset 0 is no UTF-8): expected "
    "a text",
    "pack import long.txt": "pack long.txt: not an exported context pack: it begins with something "
    "else; `kvarn pack build -f FILE` makes a pack of a text",
    "ask ./empty Who?": "there are no packs in empty: `kvarn pack build --each -f FILE … -o "
    "empty/` makes them",
    "run -p x --lora peft:0.5": "peft is the folder of an adapter, expected a GGUF file: `kvarn "
    "convert peft OUT.gguf --base MODEL` makes one",
    "run -p x --lora t.txt:0.5": "adapter t.txt: not a GGUF file: expected an adapter, as `kvarn "
    "convert` makes it of a folder that PEFT saved",
    "convert empty/gone.gguf o.gguf": "empty/gone.gguf: no such file or folder; expected a "
    "GGUF file",
    "convert t.txt o.gguf": "t.txt is a file: expected the folder of a Hugging Face model, or a "
    "file whose name ends in .gguf",
    "perplexity t.gguf -f gone.txt": "gone.txt: no such file or folder",
    "imatrix -f t.gguf -o o": "t.gguf is a model, expected a text: give the model before -f, or -m",
    "run -p x --json-schema t.txt": "--json-schema 't.txt' is a file: write @ before its name",
    "tokenize t.gguf x": "t.gguf is a model, expected a text: give the model with -m",
}
"""Exit code 1."""
WRONG_USAGE = {
    "run -p x --system y": "--system has no effect without --instruct",
    "run -p x --budget 1%": "--budget has no effect with --method full: it belongs to --method "
    "auto, hash, topk",
    "run -p x --method topk --bits 32": "--bits has no effect with --method topk: it belongs to "
    "--method hash",
    "run -p x --method hash --index flat": "--index has no effect with --method hash: it belongs "
    "to --method auto, topk",
    "run -p x --method hash --bits 16": "bits of a signature are 16, expected 32 or 64",
    "run t.gguf": "no prompt: give one with -p TEXT, -f FILE or - (stdin), or talk with `kvarn "
    "chat`",
    "convert empty": "empty: expected the name of the file to write, ending in .gguf: kvarn "
    "convert SRC OUT.gguf",
    "eval --budget 5%": "--budget has no effect with --method full",
    "eval --method full,topk:budget=1% --budget 5%": "--budget has no effect with --method "
    "full,topk:budget=1%",
    "eval --keep-budget 5%": "--keep-budget has no effect with --keep all",
    "bench -p 0 -n 0": "nothing to measure: -p and -n are 0",
    "embed rain": "there are no texts: the first word, 'rain', is the MODEL; expected some on the "
    "command line, or -f FILE",
    "embed -m t.gguf": "there are no texts: expected some on the command line, or -f FILE",
    "run -p x --lora=": "the name of an adapter is empty: expected FILE or FILE:SCALE",
    "run -p x --draft t.gguf --draft-p-min 2": "--draft-p-min 2: expected 0 to 1",
    "run -p x --draft t.gguf --draft-p-min nan": "--draft-p-min nan: expected 0 to 1",
    "run -p x --draft-max 5": "--draft-max 5 has no effect without --draft",
    "run -p x --draft-p-min 5": "--draft-p-min 5 has no effect without --draft",
    "run -p x --draft-min-match 5": "--draft-min-match 5 has no effect without --draft ngram",
    "run -p x --draft ngram --draft-p-min 0.5": "--draft-p-min 0.5 has no effect without --draft "
    "FILE",
    "run -p x --draft t.gguf --draft-min-match 3": "--draft-min-match 3 has no effect without "
    "--draft ngram",
    "doctor -c 100M": "--ctx has no effect without --fit MODEL",
    "doctor --kv-type f16": "--kv-type has no effect without --fit MODEL",
    "doctor --method full": "--method has no effect without --fit MODEL",
    "doctor --lora t.gguf": "--lora has no effect without --fit MODEL",
    "doctor --draft t.gguf": "--draft has no effect without --fit MODEL",
    "doctor --memory 1": "--memory has no effect without --fit MODEL",
    "doctor --no-speed": "--no-speed has no effect without --fit MODEL",
    "run -p x --temp -1": "sampling: temp is -1.0, expected a finite number from 0",
    "run -p x --regex [": "sampling: the regex cannot be used: unclosed character class",
}
"""Exit code 2."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("text")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "long.txt").write_text("The mill stood by the river. " * 40)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin1"))
    (tmp_path / "binary").write_bytes(b"\x8d\x8e\0\0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").write_text("{}")
    (tmp_path / "t.gguf").write_bytes(b"GGUF" + bytes(60))


@pytest.mark.parametrize("line", USAGE)
def test_wrong_usage_names_the_fix(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert capsys.readouterr() == ("", f"kvarn: {USAGE[line]}\n")


@pytest.mark.parametrize("line", [*REFUSED, *WRONG_USAGE])
def test_what_cannot_be_done_names_the_fix(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == (2 if line in WRONG_USAGE else 1)
    assert capsys.readouterr() == ("", f"kvarn: {(REFUSED | WRONG_USAGE)[line]}\n")


LLAMA_CPP = """
-t -tb -C -Cr --cpu-strict --prio --poll -Cb -Crb --cpu-strict-batch --prio-batch --poll-batch -c
-n -b -ub --keep --swa-full -fa --perf --no-perf -p -f -bf -e --no-escape --rope-scaling
--rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor
--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -kvo -nkvo --kv-offload --no-kv-offload
--repack -nr --no-host -ctk -ctv -dt -np --mlock --mmap --no-mmap -dio -ndio --numa -dev
--list-devices -ot -cmoe -ncmoe -ngl -sm -ts -mg -fit -fitt -fitc --check-tensors --override-kv
--op-offload --no-op-offload --lora --lora-scaled --control-vector --control-vector-scaled
--control-vector-layer-range -m -mu -dr -hf -hfr -hfd -hff -hfv -hffv -hft --log-disable
--log-file --log-colors -v --offline -lv --log-prefix --log-timestamps -ctkd -ctvd --samplers -s
--sampler-seq --ignore-eos --temp --top-k --top-p --min-p --top-nsigma --xtc-probability
--xtc-threshold --typical --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty
--dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker
--adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr
--mirostat-ent -l --grammar --grammar-file -j -jf -bs --verbose-prompt --display-prompt
--no-display-prompt -co --context-shift --no-context-shift -sys -sysf --show-timings
--no-show-timings -r -sp -cnv -no-cnv -st -i -if -mli --in-prefix --in-prefix-bos --in-suffix
--warmup --no-warmup -gan -gaw --prompt-cache --prompt-cache-all --prompt-cache-ro --simple-io
--chat-template --chat-template-file --chat-template-kwargs --jinja --no-jinja --reasoning-format
--reasoning-budget -mm --mmproj-offload --image --audio -td -tbd --draft --draft-min --draft-p-min
--draft-p-split -cd -devd -ngld -md --spec-replace -lcs -lcd -mv --version --completion-bash -cl
-h
"""
"""Options of llama-cli, as its documentation lists them."""


@pytest.mark.parametrize("command", ["run", "chat"])
def test_each_option_of_llama_cpp_is_taken_or_answered(command: str) -> None:
    known = options_of(command)
    assert [
        flag
        for flag in LLAMA_CPP.split()
        if flag not in known | FOREIGN.keys() and (command, flag) not in ELSEWHERE
    ] == []


def options_of(command: str) -> set[str]:
    (actions,) = (a for a in build_parser(command)._actions if a.dest == "command")
    return set(actions.choices[command]._option_string_actions)


def test_an_option_of_others_is_not_one_of_ours() -> None:
    """Or the words about it would never be said."""
    for command in ("run", "chat"):
        assert not FOREIGN.keys() & options_of(command)
    for command, flag in ELSEWHERE:
        assert flag not in options_of(command)
    assert not COMMANDS_ELSEWHERE.keys() & COMMANDS.keys()


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("help", "--help"),
        ("help run", "run --help"),
        ("help pack build", "pack build --help"),
        ("version", "--version"),
    ],
)
def test_help_and_version_are_commands_too(
    line: str, same: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for words in (line, same):
        with pytest.raises(SystemExit, match="0"):
            main(words.split())
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] != ""
