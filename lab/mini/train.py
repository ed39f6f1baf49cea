"""Trains the default model: `python -m lab.mini.train TEXT_FOLDER --out FOLDER`.

FOLDER receives tokenizer.json, checkpoint.pt (written every few minutes; the same command resumes
from it), log.jsonl (figures) and samples.txt (text at every checkpoint).
"""

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from kvarn.evals.tasks import Prose
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.system.files import new_file, open_regular

from .grow import grow, read_trained
from .losses import accumulate, validate
from .model import Mini, MiniConfig
from .optim import Muon
from .recall import Recall
from .recipes import RECIPES
from .start import look_back
from .texts.data import BOS, Book, Corpus, new_tokenizer, read_books, token_id
from .texts.rows import Rows, Stage

VALIDATION_LENGTH = 384
MOST_MEASURED = 8192
"""Longest context whose recall is measured along the way."""
PROMPTS = ("", "It was a cold evening, and the old man", '"I do not know," said')


def arguments() -> argparse.Namespace:
    """The command line; its defaults are the recipe."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("text", type=Path, help="folder of *.txt")
    p.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log and samples")
    p.add_argument("--shape", choices=list(RECIPES), default="cohere2")
    p.add_argument(
        "--tokens",
        type=float,
        nargs="+",
        help="to read (default: as many as the shape needs); of several numbers each is one at "
        "which the rate has fallen to 0, to rise again",
    )
    p.add_argument("--vocab", type=int, default=4096)
    p.add_argument("--lr", type=float, help="of the matrices (Muon; default: the recipe's)")
    p.add_argument("--lr-embd", type=float, help="of embeddings and norms (AdamW)")
    p.add_argument("--decay", type=float, default=0.25, help="last share of tokens: lr falls to 0")
    p.add_argument("--max-words-per-sentence", type=float, default=24.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument(
        "--bfloat16",
        action="store_true",
        help="multiply matrices in bfloat16: faster where the CPU has instructions for it",
    )
    p.add_argument("--checkpoint-minutes", type=float, default=4.0)
    args = p.parse_args()
    recipe = RECIPES[args.shape]
    args.tokens = args.tokens or recipe.goals
    args.lr = args.lr or recipe.lr
    args.lr_embd = args.lr_embd or recipe.lr_embd
    return args


def rate(done: float, decay: float, warmup: float = 0.03) -> float:
    """Share of the full learning rate when a share `done` of the tokens is read: up, level, and
    straight down to 0 over the last `decay`.

    The level part does not depend on how many tokens there are, so a run can be lengthened.
    """
    return min(1.0, 0.02 + done / warmup, (1 - done) / decay)


def goal_of(tokens: int, goals: Sequence[float]) -> float:
    """The first number of tokens that a run has not reached after reading `tokens`."""
    return next((goal for goal in goals if tokens < goal), goals[-1])


def load_tokenizer(out: Path, books: list[Book], n_vocab: int) -> Tokenizer:
    """The tokenizer of the run, trained at its first start."""
    path = out / "tokenizer.json"
    if not path.exists():
        with new_file(path) as part:
            new_tokenizer([b.train for b in books], n_vocab).save(str(part))
    return Tokenizer.from_file(str(path))


def append(path: Path, text: str) -> None:
    """Writes text at the end of a regular file."""
    with os.fdopen(open_regular(path, writable=True), "ab") as file:
        file.write(text.encode())


def optimisers(model: Mini, lr: float, lr_embd: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blk.")]
    others = [p for n, p in model.named_parameters() if p.ndim < 2 or not n.startswith("blk.")]
    found = [
        Muon(matrices, lr=lr, weight_decay=0.02),
        torch.optim.AdamW(others, lr=lr_embd, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimiser in found:
        for group in optimiser.param_groups:
            group["full_lr"] = group["lr"]
    return found


def sample(
    model: Mini, tokenizer: Tokenizer, prompt: str, n: int, temperature: float = 0.8, seed: int = 0
) -> str:
    """`prompt` with n sampled tokens behind it; recomputes the row for every token."""
    generator = torch.Generator().manual_seed(seed)
    ids = [token_id(tokenizer, BOS), *tokenizer.encode(prompt).ids]
    for _ in range(n):
        with torch.no_grad():
            hidden = model.hidden(torch.tensor([ids]))[0, -1]
            logits = model.token_embd.weight @ hidden * model.config.logit_scale
        chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        ids.append(int(chosen))
    return str(tokenizer.decode(ids))


class Run:
    """A training run in a folder: model, optimisers and step, saved whole and resumed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out
        self.pool = ThreadPoolExecutor(args.threads)
        self.out.mkdir(parents=True, exist_ok=True)
        books = read_books(args.text, args.max_words_per_sentence)
        self.recipe = RECIPES[args.shape]
        old = read_trained(default_model_path()) if self.recipe.grown else None
        self.tokenizer = old.tokenizer if old else load_tokenizer(self.out, books, args.vocab)
        train = Corpus.encode(self.tokenizer, [b.train for b in books])
        self.validation = Corpus.encode(self.tokenizer, [b.validation for b in books])
        filler, other = Prose([b.train for b in books]), Prose([b.validation for b in books])
        self.rows = Rows(self.tokenizer, train.ids, filler, args.seed)
        self.recall = Recall(self.tokenizer, self.validation.ids, other, self.pool)
        n_vocab = self.tokenizer.get_vocab_size()
        self.model = Mini(MiniConfig(n_vocab=n_vocab, **self.recipe.shape))
        if old:
            self.tokenizer.save(str(self.out / "tokenizer.json"))
            grow(self.model, old.weights)
        else:
            look_back(self.model)
        self.optimisers = optimisers(self.model, args.lr, args.lr_embd)
        self.done = self.tokens = 0
        self.cpu_before = 0.0
        self._resume()
        self.log(
            event="start",
            step=self.done,
            books=len(books),
            parameters=sum(p.numel() for p in self.model.parameters()),
            train_tokens=len(train.ids),
            validation_tokens=len(self.validation.ids),
            bytes_per_token=round(train.n_bytes / len(train.ids), 3),
        )

    def log(self, **figures: Any) -> None:
        """One line of figures, printed and kept."""
        line = json.dumps(figures)
        print(line, flush=True)
        append(self.out / "log.jsonl", line + "\n")

    def cpu_minutes(self) -> float:
        """CPU time of the run over all its processes and cores."""
        return (self.cpu_before + time.process_time()) / 60

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.done, self.tokens = saved["step"], saved["tokens"]
        self.cpu_before = saved["cpu_seconds"]

    def checkpoint(self) -> None:
        """Writes checkpoint.pt in one piece, then measures and samples."""
        state = {
            "config": asdict(self.model.config),
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "step": self.done,
            "tokens": self.tokens,
            "cpu_seconds": self.cpu_minutes() * 60,
        }
        with new_file(self.out / "checkpoint.pt") as part:
            torch.save(state, part)
        finished = self.share == 1
        rows = None if finished else 128
        self.measure("final" if finished else "checkpoint", rows)
        texts = [f"=== step {self.done}\n"]
        for seed, prompt in enumerate(PROMPTS):
            n = 140 if finished else 70
            text = sample(self.model, self.tokenizer, prompt, n, seed=seed)
            texts.append(text + "\n---\n")
        append(self.out / "samples.txt", "".join(texts))

    @property
    def share(self) -> float:
        """How much of the current stretch has been read."""
        return min(1.0, self.tokens / goal_of(self.tokens, self.args.tokens))

    def stage(self) -> Stage:
        """The one that the next step belongs to."""
        stages = self.recipe.stages
        ends = itertools.accumulate(stage.share for stage in stages)
        found = (s for s, end in zip(stages, ends, strict=True) if self.share < end)
        return next(found, stages[-1])

    def measure(self, event: str, rows: int | None) -> None:
        """Validation loss in nats per token, bits per byte, perplexity per token, exact replies."""
        loss = validate(self.model, self.validation, VALIDATION_LENGTH, self.pool, rows)
        tokens_per_byte = len(self.validation.ids) / self.validation.n_bytes
        length = self.stage().length
        self.log(
            event=event,
            step=self.done,
            validation_loss=round(loss, 4),
            perplexity=round(math.exp(loss), 2),
            bits_per_byte=round(loss * tokens_per_byte / math.log(2), 4),
            recall={
                str(n): self.recall.measure(self.model, n, max(2, 6144 // n))
                for n in (length, 4 * length)
                if n <= MOST_MEASURED
            },
            cpu_minutes=round(self.cpu_minutes(), 1),
        )

    def train(self) -> None:
        """Runs to the last step."""
        args, saved_at, losses = self.args, time.time(), []
        began, before = time.time(), self.tokens
        while self.share < 1:
            share = rate(self.share, args.decay)
            for optimiser in self.optimisers:
                for group in optimiser.param_groups:
                    group["lr"] = group["full_lr"] * share
            stage = self.stage()
            batch = self.rows.batch(self.done, stage)
            losses.append(accumulate(self.model, batch, self.pool, args.bfloat16))
            for optimiser in self.optimisers:
                optimiser.step()
                optimiser.zero_grad()
            self.done += 1
            self.tokens += batch.weights.size
            if self.done % 20 == 0:
                self.log(
                    step=self.done,
                    length=stage.length,
                    loss=round(sum(losses) / len(losses), 4),
                    lr_share=round(share, 3),
                    tokens=self.tokens,
                    tokens_per_second=round((self.tokens - before) / (time.time() - began)),
                    cpu_minutes=round(self.cpu_minutes(), 1),
                )
                losses.clear()
            if time.time() - saved_at > 60 * args.checkpoint_minutes or self.share == 1:
                self.checkpoint()
                saved_at = time.time()


def main() -> None:
    """Entry point of the module."""
    args = arguments()
    torch.set_num_threads(1)  # threads share the rows instead: see accumulate
    torch.manual_seed(args.seed)
    Run(args).train()


if __name__ == "__main__":
    main()
