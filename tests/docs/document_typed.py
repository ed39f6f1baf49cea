"""What a reader types for each step of a document: as it is written, in place of it, or nothing.

What a test cannot type is listed in `document_not_typed`; what is neither typed nor listed fails.
So does an entry of these lists that no document has any more.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

from kvarn.commands import COMMANDS, REAL_MODEL

from .document_commands import ROOT, Step
from .document_not_typed import NOT_TYPED

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

NEEDS_TORCH = ("kvarn", "learn")
SERVES = "kvarn serve"
ADDRESS = "localhost:8080"
"""What starts a server, and what asks it, is typed by test_serve.py."""

_ASK, _ASKED = (
    "kvarn run --pack book --instruct --temp 0 -n 40 -p ",
    "kvarn run --pack book -n 4 -p Who",
)
"""The model of these tests has no chat template."""
FILLED = {
    f'{_ASK}"Who is the owner of the walking stick?"': [_ASKED],
    f'{_ASK}"What did Dr. Mortimer read aloud to Holmes?"': [_ASKED],
    f'{_ASK}"What is the date on the stick?"': [_ASKED],
    "kvarn COMMAND --help-all": ["kvarn serve --help-all"],
    "kvarn COMMAND --help": [f"kvarn {name} --help" for name in COMMANDS],
    "kvarn convert [SRC] OUT.gguf [--type q4_k_m]": [
        "kvarn convert model.gguf OUT.gguf --type q4_k_m"
    ],
    "kvarn run [MODEL] [-p TEXT | -f FILE | -]": [
        "kvarn run",
        "kvarn run model.gguf -p TEXT",
        "kvarn run -f text.txt",
        "kvarn run model.gguf -",
    ],
    "kvarn run --instruct -p TEXT": [f"kvarn run -hf {REAL_MODEL} --instruct -p TEXT"],
    "kvarn run -hf ORGANISATION/MODEL:Q4_K_M": [f"kvarn run -hf {REAL_MODEL} -p TEXT"],
    'kvarn run model.gguf -p "The mill stood" --draft small.gguf --draft-max 8 --stats': [
        'kvarn run model.gguf -p "The mill stood" --draft model.gguf --draft-max 8 --stats -n 16'
    ],
    "kvarn chat [MODEL]": ["kvarn chat model.gguf -n 16"],
    "kvarn pack build|index|ls|info|verify|rm|export|import": [
        f"kvarn pack {name} --help"
        for name in "build index ls info verify rm export import".split()
    ],
    "kvarn ask PACK … QUESTION": ["kvarn ask --help"],
    "kvarn serve [MODEL]": ["kvarn serve --help"],
    "kvarn route --to HOST …": ["kvarn route --help"],
    "kvarn route --to gpu1 gpu2 gpu3 --api-key KEY": ["kvarn route --help-all"],
    "kvarn shard PACK --segments A:B": ["kvarn shard --help"],
    "kvarn shard saga --segments 0:64 --listen 10.0.0.2:8090 --token-file FILE": [
        "kvarn shard --help-all"
    ],
    "kvarn shard saga --segments 64: --listen 10.0.0.3:8090 --token-file FILE": [
        "kvarn shard --help-all"
    ],
    "kvarn run --pack saga --shards 10.0.0.2:8090,10.0.0.3:8090 --token-file FILE -p "
    '"Who owns the mill?"': ["kvarn run --help-all"],
    "kvarn chat --pack saga --shards 10.0.0.2:8090,10.0.0.3:8090 --token-file FILE --method hash": [
        "kvarn chat --help-all"
    ],
    "kvarn inspect FILE": ["kvarn inspect model.gguf"],
    "kvarn tokenize [-m MODEL] [TEXT … | -f FILE]": [
        "kvarn tokenize TEXT",
        "kvarn tokenize -f text.txt",
        "kvarn tokenize -m model.gguf",
    ],
    "kvarn embed MODEL TEXT … | -f FILE": [
        "kvarn embed model.gguf TEXT --pooling mean",
        "kvarn embed model.gguf -f text.txt --pooling mean",
    ],
    'kvarn embed minilm.gguf "A man eats." "The sky is blue."': [
        "kvarn embed model.gguf 'A man eats.' --pooling mean"
    ],
    "kvarn embed minilm.gguf -f texts.txt -o vectors.npy": [
        "kvarn embed model.gguf -f text.txt -o vectors.npy --pooling mean"
    ],
    'kvarn embed minilm.gguf -f texts.txt --query "who eats?"': [
        "kvarn embed model.gguf -f text.txt --query 'who eats?' --pooling mean"
    ],
    "kvarn bench [MODEL] -p 512 -n 128 -d 0": [
        "kvarn bench -p 512 -n 128 -d 0 -r 1",
        "kvarn bench model.gguf -p 512 -n 128 -d 0 -r 1",
    ],
    "kvarn perplexity [MODEL] -f FILE": [
        "kvarn perplexity -f book.txt",
        "kvarn perplexity model.gguf -f book.txt",
    ],
    "kvarn perplexity -f FILE --ctx 32768 --prefill sparse": [
        "kvarn perplexity -f book.txt --prefill sparse"
    ],
    "kvarn eval [MODEL] --method full,hash": [
        "kvarn eval --method full,hash --length 256 --contexts 1 --questions 1"
    ],
    "kvarn learn MODEL --text FILE …": [
        "kvarn learn model.gguf --text book.txt --length 1024 --tokens 1024"
    ],
    "kvarn imatrix MODEL -f FILE -o OUT": ["kvarn imatrix model.gguf -f text.txt -o OUT"],
    "kvarn build [MODEL]": ["kvarn build model.gguf --kv-type f16 --method topk"],
    "kvarn completion bash|zsh|tcsh": [
        f"kvarn completion {shell}" for shell in ("bash", "zsh", "tcsh")
    ],
    "kvarn doctor [--roofline] [--compile]": ["kvarn doctor"],
    "kvarn doctor --fit MODEL": ["kvarn doctor --fit model.gguf --no-speed"],
    "kvarn doctor --fit MODEL --ctx N": ["kvarn doctor --fit model.gguf --ctx 8K --no-speed"],
    "kvarn lens SELECTIONS.bin -o page.html": [
        "kvarn run -f book.txt -n 4 --method hash --budget 8 --record-selections SELECTIONS.bin",
        "kvarn lens SELECTIONS.bin -o page.html",
    ],
    "python -m lab.prompts -f TEXT": [
        "python -m lab.prompts -f book.txt -n 2048 --k 16 --from 1024 --blocks 1"
    ],
    "python -m lab.prompts.lost -f TEXT": [
        "python -m lab.prompts.lost -f book.txt --ctx 1200 --predict 8 --prefill exact,blocks:512"
    ],
    "kvarn eval --text TEXTS --contexts 6 --questions 30": [
        "kvarn eval --text TEXTS --contexts 1 --questions 1 --length 256"
    ],
    "kvarn perplexity -m model.gguf -f one.txt two.txt --ctx 16384 --decode 500 --method "
    "topk:budget=2%,hash:budget=2%": [
        "kvarn perplexity -m model.gguf -f book.txt text.txt --ctx 256 --decode 3"
    ],
    "kvarn perplexity -m model.gguf -f one.txt two.txt --ctx 16384 --decode 500 --method "
    "topk:budget=1.5%:budget-unit=query-head:tail=means,topk:budget=2%:index=flat": [
        "kvarn perplexity -m model.gguf -f book.txt text.txt --ctx 256 --decode 3"
    ],
    "kvarn perplexity -m model.gguf -f one.txt two.txt --ctx 8192 --decode 500 --keep "
    "streaming,nacl,snapkv --keep-budget 20%,50%": [
        "kvarn perplexity -m model.gguf -f book.txt text.txt --ctx 256 --decode 3 --keep "
        "streaming,nacl,snapkv --keep-budget 40%,50%"
    ],
    "python -m lab.evicting -m gemma-3-270m-q4_k_m.gguf -f TEXT --decode 200 --out FILE": [
        "python -m lab.evicting -m model.gguf -f book.txt --ctx 256 --decode 3 --keep-budget 50% "
        "--out losses.jsonl"
    ],
}
"""Commands with words that a reader replaces, and what such a reader types."""

ASKS = (
    'kvarn ask book "Who is the miller?"',
    'kvarn ask long "Who is the miller?"',
    'kvarn ask work "Who owns the mill?"',
    'kvarn ask work "Who owns the mill?" --json',
    'kvarn ask work book "Who is the miller?"',
    'kvarn ask ./papers/ "Who owns the mill?"',
    'kvarn ask ./papers/report ./papers/notes "Who owns the mill?"',
    'kvarn ask ./papers/report ./papers/notes --best 1 "Who owns the mill?"',
    'kvarn ask --packs ./papers/ "Who owns the mill?"',
    'kvarn ask --packs ./papers/ --best 2 "Who owns the mill?"',
    'kvarn ask --packs ./library/ "Who owns the mill?"',
)
FEW = "--length 256 --contexts 1 --questions 1"
SMALLER = {text: f"{text} -n 16" for text in ASKS} | {
    "kvarn eval -m SmolLM2-135M-Instruct.gguf --chat --task ruler --length 4096 --question decoded "
    "--method full,auto --text FOLDER": (
        f"kvarn eval -hf {REAL_MODEL} --chat --task niah_single_2 --question decoded --method "
        f"full,auto --text TEXTS {FEW}"
    ),
    "kvarn chat model.gguf": "kvarn chat model.gguf -n 16",
    f"kvarn chat -hf {REAL_MODEL}": f"kvarn chat -hf {REAL_MODEL} -n 16",
    "kvarn chat --pack long": "kvarn chat --pack long -n 16",
    "kvarn chat -f report.pdf": "kvarn chat -f report.pdf -n 16",
    "kvarn chat --pack book": "kvarn chat --pack book -n 16",
    "kvarn chat --pack book --session talk": "kvarn chat --pack book --session talk -n 16",
    "kvarn doctor --roofline": "kvarn doctor",
    "kvarn doctor --fit model.gguf --ctx 128K --kv-type q8_0 --method auto": (
        "kvarn doctor --fit model.gguf --ctx 128K --kv-type q8_0 --method auto --no-speed"
    ),
    "kvarn bench -d 8192,131072 -p 0 --method hash --kv-type q8_0": (
        "kvarn bench -d 512 -p 0 --method hash --kv-type q8_0 -n 8 -r 1"
    ),
    "kvarn bench -p 512,20 -d 128K --kv-type q8_0 --prefill sparse": (
        "kvarn bench -p 512,20 -d 9K -n 0 -r 1 --fill 512 --kv-type q8_0 --prefill sparse"
    ),
    "kvarn eval --task needle,kv,two-hop --length 4096,16384 --method full,topk,hash --budget 2%": (
        f"kvarn eval --task needle,kv,two-hop --method full,topk,hash --budget 2% {FEW}"
    ),
    "kvarn eval --task needle,kv,two-hop,chains --length 16384 --contexts 10 --questions 25 "
    "--seed 70411 --budget 2% --method full,hash,hash:rerank=2": (
        "kvarn eval --task needle,kv,two-hop,chains --seed 70411 --budget 2% "
        f"--method full,hash,hash:rerank=2 {FEW}"
    ),
    "kvarn eval --task needle,kv,records,two-hop,homes,chains --length 16384 "
    "--prefill exact,sparse": (
        "kvarn eval --task needle,kv,records,two-hop,homes,chains --prefill exact,sparse "
        "--length 512 --contexts 1 --questions 1"
    ),
    "kvarn eval -m model.gguf --task needle,kv,two-hop --length 4096,16384 --method "
    "full,topk,topk:index=flat,hash,hash:encoders=simhash --budget 2%,6.25% --probe 8": (
        "kvarn eval -m model.gguf --task needle,kv,two-hop --method "
        f"full,topk,topk:index=flat,hash,hash:encoders=simhash --budget 2%,6.25% --probe 8 {FEW}"
    ),
    "kvarn learn model.gguf --text book.txt": (
        "kvarn learn model.gguf --text book.txt --length 1024 --tokens 1024"
    ),
    "kvarn learn model.gguf --text notes.txt book.txt --length 16384": (
        "kvarn learn model.gguf --text notes.txt book.txt --length 1024 --tokens 1024"
    ),
}
"""Commands that take minutes, and answers that end when they like; and what the quick test types
instead. The slow one types them as they are written, but for evaluations, which ask thousands of
questions for an hour."""


def typed(step: Step, as_written: bool = False) -> list[Step]:
    """What is typed for a step of a document."""
    text = step.text
    if step.mention or text in NOT_TYPED or lacks_torch(step):
        return []
    if text == "make run":
        return recipe("run")
    if text in FILLED:
        return [] if as_written else [Step("shell", filled) for filled in FILLED[text]]
    if text.startswith(SERVES) or ADDRESS in text:
        return []
    return [step if as_written else Step(step.kind, SMALLER.get(text, text))]


def lacks_torch(step: Step) -> bool:
    return tuple(step.text.split()[:2]) == NEEDS_TORCH and find_spec("torch") is None


def recipe(target: str) -> list[Step]:
    """What `make` runs for a target once everything is installed."""
    variables = dict(re.findall(r"^(\w+) [?:]?= ?(.*)$", MAKEFILE, re.MULTILINE))
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None
    lines = found[1].replace("$(BIN)/", "").splitlines()
    return [
        Step("shell", re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], line.strip()))
        for line in lines
    ]
