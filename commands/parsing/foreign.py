"""Options and commands of llama.cpp, Ollama, mlx-lm and others that kvarn does not have, or has in
other commands: what to do instead.

Where kvarn has the same option under another name, the option's declaration accepts both names.
"""

from __future__ import annotations

_OMIT = "omit it"
_DEVICE = "kvarn computes on the CPU, or with --device cuda (run, chat, bench …) on one GPU"
_SAMPLER = "kvarn has no such sampler"
_SERVER = "`kvarn serve` is the server: `kvarn serve --help` lists its options"
_FILE_SAYS = "the model's file says so"
_TEMPLATE = "kvarn uses the template in the model's file"
_DRAFT = "use --draft ngram, or --draft FILE of a smaller model"
_CACHE = "use --kv DIR, or `kvarn pack`"
_TEXT_ALONE = "kvarn reads text alone"
_QUIET = f"only generated text goes to stdout, messages go to stderr: {_OMIT}, or add 2>/dev/null"
_CHAT = "use `kvarn chat`"
_EVAL = "kvarn measures perplexity, and with `kvarn eval` recall from long contexts"
_CONVERT = "use `kvarn convert` or `kvarn quantize` with --type T"

_FLAGS = {
    # How it computes
    f"kvarn reads 512 tokens at once; {_OMIT}": "-b --batch-size -ub --ubatch-size --batch",
    "--threads is for prompts too": "-tb --threads-batch",
    "use --threads N": "--num-threads --n-threads --thread",
    "use taskset, nice or --threads N": (
        "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb "
        "--cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch"
    ),
    _DEVICE: (
        "-dev -sm --split-mode -ts --tensor-split -mg --main-gpu -ncmoe --n-cpu-moe -ot "
        "--override-tensor -cmoe --cpu-moe --low-vram --num-gpu --gpu --cuda --no-gpu --cpu "
        "--tensor-parallel-size --gpu-memory-utilization --no-host --op-offload "
        "--no-op-offload"
    ),
    "`kvarn doctor` tells which GPU there is": "--list-devices",
    "with --device cuda, use --kv-on host or gpu": "-nkvo --no-kv-offload -kvo --kv-offload",
    f"kvarn maps model files; {_OMIT}": (
        "--mmap --no-mmap --mlock -dio --direct-io -ndio --no-direct-io --numa"
    ),
    f"kvarn needs no more memory than it says, and refuses what does not fit; {_OMIT}": (
        "-fit --fit -fitt --fit-target -fitc --fit-ctx --max-memory --memory-f32"
    ),
    _OMIT: (
        "--warmup --no-warmup --check-tensors --swa-full -kvu --kv-unified -nr --no-repack "
        "--repack --mul-mat-q --no-mmq -gqa --rms-norm-eps --perf --no-perf --no-show-timings "
        "--color -co --simple-io --nowordwrap --output-frequency -ofreq --save-frequency "
        "--output-format --process-output --no-ppl --show-statistics --parse-special"
    ),
    "kvarn computes with weights as the file has them": "--dtype --quantization",
    _DRAFT: (
        "-ctkd --cache-type-k-draft -ctvd --cache-type-v-draft "
        "--draft-p-split --spec-type --spec-replace -td "
        "--threads-draft -tbd --threads-batch-draft -cd --ctx-size-draft -devd --device-draft "
        "-ngld --gpu-layers-draft --n-gpu-layers-draft -hfd -hfrd --hf-repo-draft "
        "--speculative -lcs --lookup-cache-static -lcd --lookup-cache-dynamic --prompt-lookup "
        "--draft-min --draft-n-min"
    ),
    # The prompt, and what is written
    "use --stop TEXT": "-r --reverse-prompt --stop-string --stop-token --extra-eos-token",
    "texts are taken as they are; bash writes a newline as $'\\n'": (
        "-e --escape --no-escape --escape-sequences"
    ),
    "use -f FILE": "-bf --binary-file --prompt-file --in-file --input --in",
    "use -p TEXT": "--text",
    'use -sys "$(cat FILE)"': "-sysf --system-prompt-file --system-file",
    "use -sys TEXT": "--system-message",
    _TEMPLATE: (
        "--in-prefix --in-prefix-bos --in-suffix --prefill-response --prefill-assistant "
        "--no-prefill-assistant --chat-template --chat-template-file --chat-template-kwargs "
        "--template --chat-template-config --use-default-chat-template --modelfile "
        "--reasoning-format --reasoning-budget -rea --reasoning --think"
    ),
    f"`kvarn run` takes texts as they are; {_OMIT}": "--ignore-chat-template --no-instruct --raw",
    f"kvarn always uses the model's chat template; {_OMIT}": "--jinja --no-jinja",
    "kvarn writes all that the model generates": "--hidethinking",
    "control tokens are not written; --special reads those in -p and -f": "-sp",
    "use `kvarn tokenize`": "--verbose-prompt -ptc --print-token-count",
    _CHAT: (
        "-i --interactive -if --interactive-first -cnv --conversation -mli --multiline-input "
        "--chat -ins --history --resume"
    ),
    f"`kvarn run` never holds a conversation; {_OMIT}": "-no-cnv --no-cnv --no-conversation",
    "use `kvarn run --instruct -p TEXT`": "-st --single-turn",
    "give a prompt with -p TEXT": "--random-prompt",
    "use --grammar FILE": "--grammar-file",
    "use --json-schema @FILE": "-jf --json-schema-file",
    "use --json-schema TEXT": "--format",
    _TEXT_ALONE: (
        "-mm --mmproj -mmu --mmproj-url --image --audio -mv --model-vocoder --mmproj-auto "
        "--no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload --image-min-tokens "
        "--image-max-tokens --media-path -hfv -hfrv --hf-repo-v -hffv --hf-file-v"
    ),
    # How long, and what the context keeps
    "use --ctx N": (
        "--context-length --num-ctx --max-kv-size --max-model-len --max-context --context "
        "--context-size --n-ctx"
    ),
    "use -n N": "--max-new-tokens --max-length --num-predict --length --num-tokens --n-tokens",
    "use --keep streaming --keep-budget N, which goes on beyond --ctx": "--context-shift",
    f"a full context ends the text, unless --keep is given; {_OMIT}": "--no-context-shift",
    "kvarn has no self-extend": "-gan --grp-attn-n -gaw --grp-attn-w",
    "use --kv-type q8_0 or q4_0": "--kv-bits --kv-group-size --quantized-kv-start",
    f"kvarn needs none; {_OMIT}": "-dt --defrag-thold -ctxcp --ctx-checkpoints -cram --cache-ram",
    _CACHE: "--prompt-cache --prompt-cache-all --prompt-cache-ro --prompt-cache-file",
    "use --kv DIR and `kvarn pack info DIR/`": "-dkvc --dump-kv-cache",
    _FILE_SAYS: (
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
        "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --override-kv "
        "--tokenizer --eos-token"
    ),
    # How the next token is chosen, or guessed
    "use --temp T": "--temperature",
    "use --repeat-penalty R": "--repetition-penalty",
    "--temp 0 takes the most likely token, a higher one samples": "--greedy --do-sample --sample",
    "use --logit-bias ID+BIAS": "-l",
    _SAMPLER: (
        "-tfs --tfs --tfs-z --num-beams --penalize-nl --no-penalize-nl --cfg-scale "
        "--cfg-negative-prompt -bs --backend-sampling --n-probs"
    ),
    "use --draft-max N": "--draft-n --num-draft-tokens",
    # Models
    "use -hf USER/REPO, or download the file": "-mu --model-url -dr --docker-repo",
    "use -hf USER/REPO": "--repo --hub --hf-path",
    "use -hf USER/REPO:QUANT, or `kvarn hf-pull REPO --file NAME`": "-hff --hf-file",
    "set HF_TOKEN": "-hft --hf-token",
    "set HF_HUB_OFFLINE=1": "--offline",
    "use `kvarn ls`": "-cl --cache-list",
    "use --lora FILE[:SCALE]": "--lora-scaled --adapter-path",
    "adapters are applied from the start; omit it": "--lora-init-without-apply",
    "kvarn has no control vectors": (
        "--control-vector --control-vector-scaled --control-vector-layer-range"
    ),
    f"kvarn runs no code of models; {_OMIT}": "--trust-remote-code --insecure",
    _CONVERT: "--quantize --q-bits --mlx-path",
    # What it tells
    "use --stats (run, chat) for speed and memory": (
        "-v --verbose --log-verbose --log-verbosity -lv --verbosity --debug"
    ),
    "use --stats": "--show-timings --timings --time",
    _QUIET: (
        "--log-disable --log-colors --log-prefix --log-timestamps --quiet -q --silent --no-progress"
    ),
    "append 2>FILE": "--log-file --log --logdir",
    "append > FILE": "--output",
    f"text is written as it is generated; {_OMIT}": "--stream --no-stream --keepalive",
    "use `kvarn completion bash`": "--completion-bash",
    "use --help": "--usage",
    "use `kvarn --version`": "--version",
    # Other programs
    _SERVER: (
        "--host --port -np --parallel --path --api-prefix --api-key --api-key-file "
        "--ssl-key-file --ssl-cert-file --webui --no-webui --threads-http --metrics --slots "
        "--no-slots --props -cb --cont-batching --no-cont-batching -sps --slot-save-path "
        "--slot-prompt-similarity --cache-reuse --cache-prompt -to -a --alias --timeout "
        "--models-dir --models-max --tools"
    ),
    "`kvarn embed` makes vectors of texts, and `kvarn rerank` sorts them": (
        "--embedding --embeddings --pooling --attention --reranking"
    ),
    _EVAL: (
        "--hellaswag --hellaswag-tasks --winogrande --multiple-choice --kl-divergence "
        "--ppl-stride --ppl-output-type --all-logits --save-all-logits"
    ),
    "use --chunks N: the first N pieces": "--chunk --from-chunk",
}
FOREIGN = {flag: words for words, flags in _FLAGS.items() for flag in flags.split()}
"""Option → what to do instead."""

_ONE_ANSWER = "type your message, or pipe it; `kvarn run --instruct -p TEXT` answers one"
_PULL = "pull it with `kvarn hf-pull USER/REPO:QUANT`, then give its file"
_DEPTHS = "use -p, -n and -d: tokens to read, to generate, and to have before"
_ELSEWHERE = (
    ("run", "--session", "use `kvarn chat --session NAME`, or --kv DIR"),
    ("run", "--json", "text goes to stdout as it is; --stats-json FILE writes figures"),
    ("run", "-o", "append > FILE"),
    ("chat", "-p --prompt", _ONE_ANSWER),
    ("chat", "--instruct", f"a chat always uses the model's template; {_OMIT}"),
    ("chat", "--kv", "use --session NAME"),
    ("chat", "--display-prompt --no-display-prompt", f"a chat writes answers alone; {_OMIT}"),
    ("chat", "--json --stats-json -o", "/save FILE writes the conversation as JSON"),
    ("perplexity imatrix pack", "-p --prompt", "use -f FILE"),
    ("pack", "--resume --continue", f"the same command resumes; {_OMIT}"),
    ("bench", "-f --file -c --ctx --ctx-size", _DEPTHS),
    ("bench", "--json", "use -o json"),
    ("tokenize", "-p --prompt", "give the text as it is, in quotes"),
    ("serve route", "-p", "use --port N"),
    ("inspect tokenize quantize lens learn", "-hf -hfr --hf-repo", _PULL),
    ("inspect quantize learn", "-m --model", "give the file without it"),
    ("shard", "--port --host", "use --listen HOST:PORT"),
    ("rerank", "--query", "the query is the word before the texts"),
    ("convert", "-o --output", "the file to write is the last word: kvarn convert SRC OUT.gguf"),
    ("learn", "-f --file", "use --text FILE"),
)
ELSEWHERE = {
    (command, flag): words
    for commands, flags, words in _ELSEWHERE
    for command in commands.split()
    for flag in flags.split()
}
"""Command, option that only other commands of kvarn have → what to do instead."""

_COMMANDS = {
    "did you mean `kvarn hf-pull`?": "pull get download",
    "did you mean `kvarn ls`?": "list models",
    "did you mean `kvarn inspect`?": "show info",
    "did you mean `kvarn run`?": "generate cli complete",
    "did you mean `kvarn chat`?": "repl talk",
    "did you mean `kvarn perplexity`?": "ppl",
    "did you mean `kvarn bench`?": "benchmark",
    "did you mean `kvarn serve`?": "server api start",
    "a model is one file, and each command one process; there is nothing to do": (
        "ps stop push create cp"
    ),
    "`kvarn pack rm` removes packs; a model is a file (`kvarn ls`): remove it as any other": (
        "rm remove delete"
    ),
    "did you mean `kvarn pack build`?": "pack-build build-pack",
    "omit the second `kvarn`": "kvarn",
    "use pip install --upgrade": "update upgrade",
    "set HF_TOKEN to a token of the Hugging Face hub": "login signin",
    "did you mean `kvarn embed`?": "embedding embeddings vectors encode",
    "kvarn trains hash encoders alone, with `kvarn learn`": "train finetune lora fuse",
    "search huggingface.co for GGUF files, then `kvarn chat -hf USER/REPO`": "search",
}
COMMANDS_ELSEWHERE = {name: words for words, names in _COMMANDS.items() for name in names.split()}
"""Command → what to do instead."""
