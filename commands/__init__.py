"""The commands of the `kvarn` program, one file each.

    answering/   run, chat, ask, serve, route, shard
    texts/       pack, embed, rerank, tokenize
    models/      hf-pull, convert, quantize, imatrix, learn, inspect, ls
    measuring/   bench, perplexity, eval, lens
    machine/     build, doctor, completion
    options/     options that several commands have; parsing/: what reads command lines
    terminal/    bars, tables, Ctrl-C; opening.py: loads what options name; notices.py: lines

Each module has `add(parser)`, which declares its options, and `run(options) -> int`. The command
line imports only the module of the command that is named.
"""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "hf-pull": ("models.hf_pull", "pull a model from the Hugging Face hub"),
    "convert": ("models.convert", "convert a Hugging Face model to GGUF"),
    "quantize": ("models.quantize", "write a GGUF model in another type"),
    "imatrix": ("models.imatrix", "collect an importance matrix for `kvarn quantize`"),
    "learn": ("models.learn", "train hash encoders for a model"),
    "run": ("answering.run", "generate text from a prompt"),
    "chat": ("answering.chat.command", "talk with a model"),
    "ask": ("answering.ask", "ask packs a question, and see which passages weighed most"),
    "serve": (
        "answering.serve",
        "answer programs over HTTP: OpenAI's, Anthropic's and Ollama's APIs",
    ),
    "route": ("answering.route", "one address for several servers of a model"),
    "shard": ("answering.shard", "hold segments of a pack for contexts on other machines"),
    "embed": ("texts.embed", "turn texts into vectors, or sort them by likeness to a query"),
    "rerank": ("texts.rerank", "sort texts by how well they answer a query"),
    "inspect": ("models.inspect", "show what a GGUF file holds"),
    "tokenize": ("texts.tokenize", "show the tokens of a text"),
    "pack": ("texts.pack", "build, list, verify, export, import and remove context packs"),
    "bench": ("measuring.bench", "measure prefill and decode speed"),
    "lens": ("measuring.lens.command", "make a page of what generated tokens read of a text"),
    "perplexity": ("measuring.perplexity", "measure how well a model predicts a text"),
    "eval": ("measuring.eval", "measure what a model recalls from long contexts"),
    "ls": ("models.ls", "list the models and packs on this machine"),
    "build": ("machine.build", "compile a model's kernels ahead of their first use"),
    "doctor": ("machine.doctor", "show what this machine has, and what to fix"),
    "completion": (
        "machine.completion",
        "print a script that completes command lines in your shell",
    ),
}
"""Name → module, and its line in the list of commands."""
REAL_MODEL = "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"
"""A chat model of 0.5 GB, which messages suggest to users who have none."""
