"""Sampling options: llama.cpp's names, the defaults of `Sampler`, errors that name the option."""

import argparse
import math

import pytest

from kvarn.commands.options.generation import add_sampling_options, sampler_from
from kvarn.runtime.sampling import Sampler, SamplingError


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser)
    return parser.parse_args(arguments)


def test_no_options_give_the_defaults() -> None:
    assert sampler_from(parse()) == Sampler()
    assert parse().stop == []


def test_every_option_arrives() -> None:
    line = (
        "--temp 0.5 --top-k 7 --top-p 0.6 --min-p 0.1 --typical 0.9 --repeat-penalty 1.2 "
        "--repeat-last-n -1 --presence-penalty 0.3 --frequency-penalty -0.4 "
        "--logit-bias 5+1.5 --logit-bias 7-inf --seed 3 --stop a --stop b"
    )
    options = parse(*line.split())
    assert sampler_from(options) == Sampler(
        temp=0.5,
        top_k=7,
        top_p=0.6,
        min_p=0.1,
        typical_p=0.9,
        repeat_penalty=1.2,
        repeat_last_n=-1,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={5: 1.5, 7: -math.inf},
        seed=3,
    )
    assert options.stop == ["a", "b"]


def test_seed_minus_one_is_a_fresh_one() -> None:
    assert sampler_from(parse("--seed", "-1")).seed is None


@pytest.mark.parametrize("bias", ["", "5", "5*2", "x+1", "5+", "5+x", "+1"])
def test_a_bias_of_another_form_is_wrong_usage(
    bias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse("--logit-bias", bias)
    assert stopped.value.code == 2
    assert "expected ID+BIAS" in capsys.readouterr().err


def test_values_out_of_range_are_named() -> None:
    with pytest.raises(SamplingError, match=r"top_p is 1\.5"):
        sampler_from(parse("--top-p", "1.5"))
