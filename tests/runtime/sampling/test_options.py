"""Options of another kind than expected are refused in one line."""

from typing import Any

import numpy as np
import pytest

from kvarn.runtime.sampling import Sampler, SamplingError
from kvarn.runtime.sampling.order import samplers_lettered, samplers_named

NAMES = [
    "temp", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "n_probs", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n", "xtc_probability", "xtc_threshold",
    "top_n_sigma", "dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau",
    "mirostat_eta", "adaptive_target", "adaptive_decay", "ignore_eos",
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


DEFAULT = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
"""`llama-cli --help` of llama.cpp."""


def test_samplers_are_named_as_in_llama_cpp() -> None:
    names = tuple(DEFAULT.split(";"))
    assert Sampler().samplers == names == samplers_lettered("edskypmxt")
    assert samplers_named("top-k;TOPK;nucleus;typ;temp;adaptive-p") == (
        "top_k", "top_k", "top_p", "typ_p", "temperature", "adaptive_p",
    )  # fmt: skip
    assert Sampler(samplers="").samplers == () == Sampler(samplers=[]).samplers
    assert Sampler(samplers=["min_p"]).samplers == ("min_p",)


def test_unknown_samplers_are_named() -> None:
    with pytest.raises(SamplingError, match=r"name 'top_q', expected .*did you mean top_p"):
        Sampler(samplers="top_k;top_q")
    with pytest.raises(SamplingError, match="letter 'i', expected some of edskypmxta"):
        samplers_lettered("ei")


def test_a_target_that_nothing_heeds_is_refused() -> None:
    assert Sampler(adaptive_target=0.5, samplers="adaptive_p").adaptive_target == 0.5
    for options in ({}, {"samplers": "adaptive_p", "mirostat": 2}):
        with pytest.raises(SamplingError, match=r"adaptive_target is 0\.5"):
            Sampler(adaptive_target=0.5, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temp", float("nan")),
        ("temp", -1.0),
        ("temp", True),
        ("top_k", -2),
        ("top_k", True),
        ("seed", True),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 2.0),
        ("typical_p", float("nan")),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", float("inf")),
        ("repeat_last_n", -2),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", float("nan")),
        ("seed", -5),
        ("n_probs", -1),
        ("dry_multiplier", -1.0),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", ["x" * 41]),
        ("dry_sequence_breakers", "\n"),
        ("xtc_probability", 1.1),
        ("xtc_threshold", float("nan")),
        ("top_n_sigma", float("inf")),
        ("dynatemp_range", -0.1),
        ("dynatemp_exponent", float("inf")),
        ("mirostat", 3),
        ("mirostat_tau", -1.0),
        ("mirostat_eta", float("nan")),
        ("adaptive_target", 1.5),
        ("adaptive_decay", 1.0),
        ("samplers", ["top_x"]),
        ("samplers", 5),
        ("ignore_eos", 1),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: float("inf")}),
    ],
)
def test_options_out_of_range_are_named(option: str, value: Any) -> None:
    with pytest.raises(SamplingError, match=rf"{option}.*expected"):
        Sampler(**{option: value})


def test_tokens_beyond_the_vocabulary_are_named() -> None:
    logits = np.zeros(8, np.float32)
    with pytest.raises(SamplingError, match="logit_bias names token 8, expected ids from 0 to 7"):
        Sampler(logit_bias={8: 1.0}).start().sample(logits)


def test_options_are_values() -> None:
    bias = {1: 2.0}
    sampler = Sampler(logit_bias=bias)
    bias[2] = 1.0
    assert sampler == Sampler(logit_bias={1: 2.0})
    assert hash(sampler) == hash(Sampler(logit_bias={1: 2.0}))
