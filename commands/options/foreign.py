"""Options and commands of llama.cpp, Ollama and mlx-lm that kvarn has not: what to do instead.

What kvarn has under another name is accepted under theirs, where the option is declared.
"""

from __future__ import annotations

_OMIT = "omit it"
_DEVICE = "kvarn computes on the CPU, or with --device cuda (run, chat, bench …) on one GPU"
_CPU = f"kvarn holds K and V in the host's memory; {_OMIT}"
_SAMPLER = "no sampler of kvarn does that"

_WORDS = (
    ("-b --batch-size -ub --ubatch-size", f"kvarn reads prompts 512 tokens at a time; {_OMIT}"),
    ("-tb --threads-batch", "--threads is for prompts too"),
    ("-i --interactive -if --interactive-first -cnv --conversation -mli", "use `kvarn chat`"),
    ("-no-cnv --no-cnv --no-conversation", f"`kvarn run` never holds a conversation; {_OMIT}"),
    ("-st --single-turn", "use `kvarn run --instruct -p TEXT`"),
    ("-dev -sm --split-mode -ts --tensor-split -mg --main-gpu", _DEVICE),
    ("--list-devices", "`kvarn doctor` tells which GPU there is"),
    ("-nkvo --no-kv-offload", _CPU),
    ("-ot --override-tensor -cmoe --cpu-moe", _DEVICE),
    ("--mmap --no-mmap --mlock -dio --direct-io --numa", f"kvarn maps model files; {_OMIT}"),
    ("--warmup --no-warmup --no-perf --perf --color --simple-io --check-tensors -fit", _OMIT),
    ("--swa-full -kvu --kv-unified -nr --no-repack", _OMIT),
    ("-r --reverse-prompt", "use --stop TEXT"),
    ("-e --escape --no-escape", "texts are taken as they are; bash writes a newline as $'\\n'"),
    ("-bf --binary-file", "use -f FILE"),
    ("--prompt-cache --prompt-cache-all --prompt-cache-ro", "use --kv DIR, or `kvarn pack`"),
    ("-md --model-draft --draft-p-min --spec-type", "use --draft ngram, which needs no model"),
    ("-mu --model-url", "use -hf USER/REPO, or download the file"),
    ("-hff --hf-file", "use -hf USER/REPO:QUANT, or `kvarn hf-pull REPO --file NAME`"),
    ("-hft --hf-token", "set HF_TOKEN"),
    ("--offline", "set HF_HUB_OFFLINE=1"),
    ("--lora --lora-scaled --control-vector --adapter-path", "merge adapters into the model first"),
    ("--grammar --grammar-file -j --json-schema -jf", "kvarn cannot constrain what is generated"),
    ("-mm --mmproj --image --audio", "kvarn reads text alone"),
    ("--chat-template --chat-template-file", "kvarn uses the template in the model's file"),
    ("--jinja --no-jinja", f"kvarn always uses the model's chat template; {_OMIT}"),
    ("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale", "the model's file says so"),
    ("--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor", "the model's file says so"),
    ("--mirostat --mirostat-ent --mirostat-lr --samplers --sampler-seq --top-nsigma", _SAMPLER),
    ("--dry-multiplier --dry-base --dry-allowed-length --xtc-probability", _SAMPLER),
    ("--xtc-threshold --dynatemp-range --dynatemp-exp --adaptive-target", _SAMPLER),
    ("-v --verbose --log-verbosity -lv", "use --stats for speed and memory"),
    ("--host --port -np --parallel", "kvarn is no server"),
    ("-gan --grp-attn-n -gaw --grp-attn-w", "kvarn has no self-extend"),
    ("--context-length --num-ctx --max-kv-size", "use --ctx N"),
    ("--max-new-tokens --max-length --num-predict", "use -n N"),
    ("--temperature", "use --temp T"),
    ("--kv-bits --quantized-kv-start", "use --kv-type q8_0 or q4_0"),
)  # fmt: skip
FOREIGN = {flag: words for flags, words in _WORDS for flag in flags.split()}
"""Option → what to do instead."""

_INSTEAD = {
    "pull": "hf-pull",
    "download": "hf-pull",
    "list": "ls",
    "models": "ls",
    "show": "inspect",
    "info": "inspect",
    "generate": "run",
    "ask": "run",
    "cli": "run",
    "ppl": "perplexity",
    "rm": "pack rm",
    "version": "--version",
}
COMMANDS_ELSEWHERE = {
    **{name: f"did you mean `kvarn {ours}`?" for name, ours in _INSTEAD.items()},
    "serve": "kvarn is no server; talk with `kvarn chat`, or import it in Python",
    "server": "kvarn is no server; talk with `kvarn chat`, or import it in Python",
}
"""Command → what to do instead."""
