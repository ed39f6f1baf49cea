"""Sampling options: llama.cpp's names, the defaults of `Sampler`, errors that name the option."""

import argparse
import math

import pytest

from kvarn.commands.options.generation import add_sampling_options, sampling_from
from kvarn.runtime.sampling import Sampler


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser)
    return parser.parse_args(arguments)


def sampler_from(options: argparse.Namespace) -> Sampler:
    return Sampler(**sampling_from(options))


def test_no_options_give_the_defaults() -> None:
    assert sampling_from(parse()) == {}
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


def test_every_other_sampler_arrives() -> None:
    line = (
        "--top-nsigma 1.5 --xtc-probability 0.5 --xtc-threshold 0.2 --dynatemp-range 0.4 "
        "--dynatemp-exp 2 --dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 "
        "--dry-penalty-last-n -1 --dry-sequence-breaker x --dry-sequence-breaker none "
        "--dry-sequence-breaker ; --mirostat 0 --mirostat-ent 4 --mirostat-lr 0.2 "
        "--adaptive-target 0.6 --adaptive-decay 0.5 --samplers dry;top-k;adaptive_p --ignore-eos"
    )
    assert sampler_from(parse(*line.split())) == Sampler(
        top_n_sigma=1.5,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        dynatemp_range=0.4,
        dynatemp_exponent=2.0,
        dry_multiplier=0.8,
        dry_base=2.0,
        dry_allowed_length=3,
        dry_penalty_last_n=-1,
        dry_sequence_breakers=[";"],
        mirostat_tau=4.0,
        mirostat_eta=0.2,
        adaptive_target=0.6,
        adaptive_decay=0.5,
        samplers=["dry", "top_k", "adaptive_p"],
        ignore_eos=True,
    )
    assert sampler_from(parse("--sampler-seq", "kt")).samplers == ("top_k", "temperature")
    assert sampler_from(parse("--dry-sequence-breaker", "none")).dry_sequence_breakers == ()


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
