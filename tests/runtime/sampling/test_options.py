"""Options of another kind than expected are refused in one line."""

import numpy as np
import pytest

from kvarn.runtime.sampling import Sampler, SamplingError

NAMES = [
    "temp", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "n_probs",
]  # fmt: skip


@pytest.mark.parametrize("value", ["5", b"5", [1], {}, object()])
@pytest.mark.parametrize("name", [*NAMES, "seed", "logit_bias"])
def test_options_of_other_kinds_are_refused(name: str, value: object) -> None:
    if (name, value) == ("logit_bias", {}):
        assert Sampler(logit_bias={}).logit_bias is None
        return
    with pytest.raises(SamplingError, match=name):
        Sampler(**{name: value})


@pytest.mark.parametrize("bias", [{"5": 1.0}, {5: "1"}, {1.5: 1.0}, {None: None}])
def test_a_bias_of_other_kinds_is_refused(bias: dict) -> None:
    with pytest.raises(SamplingError, match="logit_bias"):
        Sampler(logit_bias=bias)


def test_numbers_of_numpy_are_numbers() -> None:
    sampler = Sampler(
        temp=np.float32(0.5), top_k=np.int64(3), seed=np.uint32(1), logit_bias={np.int32(4): 1}
    )
    assert (sampler.temp, sampler.top_k, sampler.seed) == (0.5, 3, 1)
