"""The sample that limits choices: where its tokens lie, and what its limits miss."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kvarn.cuda_ops.select.sample import ENOUGH, SAMPLE, rank_in_sample, sampled

from . import sketched

LENGTHS = [4096, 4097, 6143, 9000, 131_072, 1_048_575]
N_SAMPLED = SAMPLE.value


@triton.jit
def _sampled_kernel(first, n, out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), sampled(first, n))


@triton.jit
def _ranks_kernel(counts, n, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, rank_in_sample(tl.load(counts + i), n))


def _positions(device, first: int, n: int) -> np.ndarray:
    out = torch.zeros(N_SAMPLED, dtype=torch.int32, device=device)
    _sampled_kernel[(1,)](first, n, out, SIZE=N_SAMPLED)
    return out.cpu().numpy()


def _ranks(device, counts: np.ndarray, n: int) -> np.ndarray:
    """Of numbers of wanted tokens, 2,048 or fewer."""
    given = torch.zeros(2048, dtype=torch.int32, device=device)
    given[: len(counts)] = torch.tensor(counts)
    out = torch.zeros_like(given)
    _ranks_kernel[(1,)](given, n, out, SIZE=2048)
    return out.cpu().numpy()[: len(counts)]


@pytest.mark.parametrize("n", LENGTHS)
def test_each_part_has_one_token_anywhere_in_it(device, n: int) -> None:
    positions, i = _positions(device, 300, n) - 300, np.arange(N_SAMPLED)
    np.testing.assert_array_equal(positions, sketched.sampled(0, n))
    begin, stop = i * n // N_SAMPLED, (i + 1) * n // N_SAMPLED
    assert (begin <= positions).all() and (positions < stop).all()
    # Uniform in their parts, neighbours independently: within five standard deviations.
    place = (positions - begin - (stop - begin - 1) / 2) / np.sqrt(((stop - begin) ** 2 - 1) / 12)
    assert abs(place.mean()) < 5 / np.sqrt(N_SAMPLED)
    assert abs((place**2).mean() - 1) < 5 * np.sqrt(0.8 / N_SAMPLED)
    assert abs((place[1:] * place[:-1]).mean()) < 5 / np.sqrt(N_SAMPLED)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_limit_is_missed_less_often_than_once_in_a_million(device, n: int) -> None:
    """By the tail of a Poisson distribution: as many of the best in the sample as the rank says."""
    few = np.arange(1, 1001)
    counts = np.concatenate((few, np.linspace(1001, n, 1048).astype(int)))
    ranks = _ranks(device, counts, n)
    wanted = torch.tensor(counts * N_SAMPLED / n, dtype=torch.float64)
    missed = torch.special.gammainc(torch.tensor(ranks, dtype=torch.float64), wanted).numpy()
    asked = ranks <= N_SAMPLED
    assert missed[asked].max() < 1e-6
    # But not by ranks that are lower by two; and only choices of nearly all have no sample.
    lower = torch.special.gammainc(torch.tensor(ranks - 2, dtype=torch.float64), wanted).numpy()
    assert lower[asked].max() > 1e-6
    assert asked[counts <= n * 7 // 8].all() and not asked[counts > n * 15 // 16].any()


def test_few_tokens_have_no_sample(device) -> None:
    n = ENOUGH.value
    assert _ranks(device, np.array([1]), n) <= N_SAMPLED
    for length in (0, 1, n - 1):
        assert _ranks(device, np.array([1]), length) > N_SAMPLED
