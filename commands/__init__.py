"""The commands of the `kvarn` program, one file each.

Each module has `add(parser)`, which declares its options, and `run(options) -> int`. The command
line imports only the module of the command that is named.
"""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "hf-pull": ("hf_pull", "pull a model from the Hugging Face hub"),
    "convert": ("convert", "convert a Hugging Face model to GGUF"),
    "quantize": ("quantize", "write a GGUF model in another type"),
    "imatrix": ("imatrix", "collect an importance matrix for `kvarn quantize`"),
    "learn": ("learn", "train hash encoders for a model"),
    "run": ("run", "generate text from a prompt"),
    "chat": ("chat.command", "talk with a model"),
    "ask": ("ask", "ask packs a question, and see which passages weighed most"),
    "serve": ("serve", "answer programs over HTTP: OpenAI's, Anthropic's and Ollama's APIs"),
    "embed": ("embed", "turn texts into vectors, or sort them by likeness to a query"),
    "rerank": ("rerank", "sort texts by how well they answer a query"),
    "inspect": ("inspect", "show what a GGUF file holds"),
    "tokenize": ("tokenize", "show the tokens of a text"),
    "pack": ("pack", "build, list, check, move and remove context packs"),
    "bench": ("bench", "measure prefill and decode speed"),
    "lens": ("lens.command", "make a page of what generated tokens read of a text"),
    "perplexity": ("perplexity", "measure how well a model predicts a text"),
    "eval": ("eval", "measure what a model recalls from long contexts"),
    "ls": ("ls", "list the models and packs on this machine"),
    "build": ("build", "compile a model's kernels ahead of their first use"),
    "doctor": ("doctor", "show what this machine has, and what to fix"),
    "completion": ("completion", "print a script that completes command lines in your shell"),
}
"""Name → module, and its line in the list of commands."""
REAL_MODEL = "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"
"""A chat model of 0.5 GB, which messages suggest to users who have none."""
