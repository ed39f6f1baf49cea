"""A copy of a sampler draws what the first would draw, and neither changes the other."""

from dataclasses import replace

import numpy as np
import pytest

from kvarn.runtime.model import Model
from kvarn.runtime.sampling import Constraint, Sampler

SAMPLERS = {
    "penalties": Sampler(repeat_penalty=1.3, repeat_last_n=4, frequency_penalty=0.4),
    "all tokens": Sampler(repeat_penalty=1.3, repeat_last_n=-1),
    "dry": Sampler(dry_multiplier=0.8, dry_penalty_last_n=-1, dry_allowed_length=1),
    "xtc": Sampler(xtc_probability=0.5, xtc_threshold=0.05),
    "mirostat": Sampler(mirostat=1),
    "adaptive": Sampler(samplers=["adaptive_p"], adaptive_target=0.1),
    "constraint": Sampler(constraint=Constraint("regex", "([a-z]+ )+")),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_fork_draws_the_same_and_goes_on_by_itself(tiny: Model, name: str) -> None:
    """Oracle: two samplers of one seed, which never met."""
    sampler = replace(SAMPLERS[name], seed=7)
    rows = np.random.default_rng(1).normal(0, 1, (60, 512)).astype(np.float32)
    rows[:, 97:107] += 4  # few tokens, so that some repeat
    forked, alone = (sampler.start(tiny.tokenizer) for _ in range(2))
    drawn, ahead = [], []
    for i, row in enumerate(rows):
        fork = forked.fork()
        guesses = []
        for logits in rows[i : i + 3]:
            guesses.append(fork.sample(logits))
            fork.accept(guesses[-1])
        ahead.append(guesses)
        drawn.append(alone.sample(row))
        assert forked.sample(row) == drawn[-1]
        forked.accept(drawn[-1])
        alone.accept(drawn[-1])
    assert ahead == [drawn[i : i + 3] for i in range(60)]
