"""Trains the default model: `python -m kvarn.mini.train TEXT_FOLDER --out FOLDER`.

FOLDER receives tokenizer.json, checkpoint.pt (written every few minutes; the same command resumes
from it), log.jsonl (figures) and samples.txt (text at every checkpoint).
"""

import argparse
import json
import math
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from .data import BOS, Book, Corpus, Rows, new_tokenizer, read_books, token_id
from .model import Mini, MiniConfig
from .optim import Muon

ROWS_PER_PART = 3
"""Rows a thread works on at a time: small enough for its logits to stay in cache and heap."""
PROMPTS = ("", "It was a cold evening, and the old man", '"I do not know," said')


def arguments() -> argparse.Namespace:
    """The command line; its defaults are how the shipped model was made."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("text", type=Path, help="folder of *.txt")
    p.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log and samples")
    p.add_argument("--steps", type=int, default=1600)
    p.add_argument("--batch", type=int, default=12, help="rows per step")
    p.add_argument("--length", type=int, default=256, help="tokens per row")
    p.add_argument("--vocab", type=int, default=4096)
    p.add_argument("--lr", type=float, default=0.02, help="of the matrices (Muon)")
    p.add_argument("--lr-embd", type=float, default=6e-3, help="of embeddings and norms (AdamW)")
    p.add_argument("--decay", type=float, default=0.375, help="last share of steps, lr falls to 0")
    p.add_argument("--max-words-per-sentence", type=float, default=24.0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--checkpoint-minutes", type=float, default=4.0)
    return p.parse_args()


def rate(step: int, steps: int, decay: float, warmup: int = 60) -> float:
    """Share of the full learning rate: up, level, and straight down to 0 over the last `decay`.

    The level part does not depend on `steps`, so a run can be lengthened while it lasts.
    """
    return min(1.0, (step + 1) / warmup, (steps - step) / max(1.0, decay * steps))


def load_tokenizer(out: Path, books: list[Book], n_vocab: int) -> Tokenizer:
    """The tokenizer of the run, trained at its first start."""
    path = out / "tokenizer.json"
    if not path.exists():
        new_tokenizer([b.train for b in books], n_vocab).save(str(path))
    return Tokenizer.from_file(str(path))


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


def row_loss(model: Mini, rows: Tensor) -> Tensor:
    """Mean cross-entropy in nats of each next token of rows [B, T + 1]."""
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def accumulate(model: Mini, rows: Tensor, pool: ThreadPoolExecutor) -> float:
    """Sets every p.grad to the mean gradient over rows and returns the mean loss.

    Each thread takes whole parts through the network with one-threaded operators: they never wait
    for each other inside one, which on a busy machine is several times faster than threads within
    operators. Parts are summed in their order: the same bits for any number of threads.
    """
    params = list(model.parameters())

    def one(part: Tensor) -> tuple[float, tuple[Tensor, ...]]:
        loss = row_loss(model, part) * (len(part) / len(rows))
        return loss.item(), torch.autograd.grad(loss, params)

    total = 0.0
    for loss, grads in pool.map(one, rows.split(ROWS_PER_PART)):
        total += loss
        for p, g in zip(params, grads, strict=True):
            p.grad = g if p.grad is None else p.grad.add_(g)
    return total


def validate(
    model: Mini, corpus: Corpus, length: int, pool: ThreadPoolExecutor, max_rows: int | None = None
) -> float:
    """Nats per token over the validation text in rows of `length`, spread over all books."""
    ids = torch.from_numpy(corpus.ids.astype("int64"))
    rows = ids[: (len(ids) - 1) // length * length + 1].unfold(0, length + 1, length)
    if max_rows is not None:
        rows = rows[:: max(1, len(rows) // max_rows)]

    def one(part: Tensor) -> float:
        with torch.no_grad():
            return float(row_loss(model, part)) * len(part)

    losses: Iterable[float] = pool.map(one, rows.split(ROWS_PER_PART))
    return sum(losses) / len(rows)


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
        self.tokenizer = load_tokenizer(self.out, books, args.vocab)
        train = Corpus.encode(self.tokenizer, [b.train for b in books])
        self.validation = Corpus.encode(self.tokenizer, [b.validation for b in books])
        newline = self.tokenizer.encode("\n").ids[0]
        bos = token_id(self.tokenizer, BOS)
        self.rows = Rows(train.ids, args.length, args.batch, bos, newline, args.seed)
        self.model = Mini(MiniConfig(n_vocab=self.tokenizer.get_vocab_size()))
        self.optimisers = optimisers(self.model, args.lr, args.lr_embd)
        self.done = 0
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
            steps_per_epoch=self.rows.steps_per_epoch,
        )

    def log(self, **figures: Any) -> None:
        """One line of figures, printed and kept."""
        line = json.dumps(figures)
        print(line, flush=True)
        with (self.out / "log.jsonl").open("a") as file:
            file.write(line + "\n")

    def cpu_minutes(self) -> float:
        """CPU time of the run over all its processes and cores."""
        return (self.cpu_before + time.process_time()) / 60

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.done, self.cpu_before = saved["step"], saved["cpu_seconds"]

    def checkpoint(self) -> None:
        """Writes checkpoint.pt in one piece, then measures and samples."""
        temporary = self.out / "checkpoint.pt.tmp"
        state = {
            "config": self.model.config.as_dict(),
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "step": self.done,
            "cpu_seconds": self.cpu_minutes() * 60,
            "length": self.args.length,
        }
        torch.save(state, temporary)
        temporary.replace(self.out / "checkpoint.pt")
        finished = self.done >= self.args.steps
        rows = None if finished else 128
        self.measure("final" if finished else "checkpoint", rows)
        with (self.out / "samples.txt").open("a") as file:
            file.write(f"=== step {self.done}\n")
            for seed, prompt in enumerate(PROMPTS):
                n = 140 if finished else 70
                text = sample(self.model, self.tokenizer, prompt, n, seed=seed)
                file.write(text + "\n---\n")

    def measure(self, event: str, rows: int | None) -> None:
        """Validation loss in nats per token, bits per byte and perplexity per token."""
        loss = validate(self.model, self.validation, self.args.length, self.pool, rows)
        tokens_per_byte = len(self.validation.ids) / self.validation.n_bytes
        self.log(
            event=event,
            step=self.done,
            validation_loss=round(loss, 4),
            perplexity=round(math.exp(loss), 2),
            bits_per_byte=round(loss * tokens_per_byte / math.log(2), 4),
            cpu_minutes=round(self.cpu_minutes(), 1),
        )

    def train(self) -> None:
        """Runs to the last step."""
        args, began, first = self.args, time.time(), self.done
        saved_at, losses = time.time(), []
        while self.done < args.steps:
            share = rate(self.done, args.steps, args.decay)
            for optimiser in self.optimisers:
                for group in optimiser.param_groups:
                    group["lr"] = group["full_lr"] * share
            rows = torch.from_numpy(self.rows.step(self.done))
            losses.append(accumulate(self.model, rows, self.pool))
            for optimiser in self.optimisers:
                optimiser.step()
                optimiser.zero_grad()
            self.done += 1
            if self.done % 20 == 0:
                speed = (self.done - first) * args.batch * args.length / (time.time() - began)
                self.log(
                    step=self.done,
                    loss=round(sum(losses) / len(losses), 4),
                    lr_share=round(share, 3),
                    tokens_per_second=round(speed),
                    cpu_minutes=round(self.cpu_minutes(), 1),
                )
                losses.clear()
            if time.time() - saved_at > 60 * args.checkpoint_minutes or self.done == args.steps:
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
