# %% [markdown]
# A look into a context, cell by cell (VS Code, or Jupyter with Jupytext), or all at once:
# python examples/notebook.py BOOK.txt

# %% Read the text
import sys
from pathlib import Path

import numpy as np

import kvarn

model = kvarn.load()
text = Path(sys.argv[-1]).read_text(encoding="utf-8")
context = model.context(16_384, attend=kvarn.TopK(budget="5%"))
logits = context.prefill(text)
print(f"{len(context.tokens):,} tokens of {len(text):,} characters")

# %% What may come next, and how likely it is
weights = np.exp(logits - logits.max())
for token in np.argsort(-weights)[:5].tolist():
    print(f"{weights[token] / weights.sum():6.1%} {model.tokenizer.decode([token])!r}")

# %% Go on, without randomness
print("".join(context.generate("", max_tokens=30, sampler=kvarn.Sampler(temp=0))))

# %% How much of the text each step read, by layer
for number, layer in enumerate(context.stats.layers):
    if layer.steps:
        print(f"layer {number}: {layer.attended_tokens / layer.stored_tokens:.1%} of the text")
