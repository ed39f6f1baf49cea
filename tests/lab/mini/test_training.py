"""The parts of the training scripts that could go wrong without a word."""

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is only needed to train: pip install torch")

from lab.mini.losses import accumulate, loss_sum  # noqa: E402
from lab.mini.model import Mini, MiniConfig, windowed_attention  # noqa: E402
from lab.mini.optim import orthogonalise  # noqa: E402
from lab.mini.recipes import RECIPES  # noqa: E402
from lab.mini.texts.data import paragraphs, words_per_sentence  # noqa: E402
from lab.mini.texts.rows import Batch  # noqa: E402
from lab.mini.train import goal_of, rate  # noqa: E402


@pytest.mark.parametrize("n_tokens", [1, 7, 8, 9, 24, 29])
def test_windowed_attention_equals_a_full_mask(n_tokens: int) -> None:
    torch.manual_seed(n_tokens)
    window = 8
    q, k, v = torch.randn(3, 2, 3, n_tokens, 16)
    distance = torch.arange(n_tokens)[:, None] - torch.arange(n_tokens)
    mask = (distance >= 0) & (distance < window)
    scores = (q @ k.mT / 4.0).masked_fill(~mask, -torch.inf)
    expected = scores.softmax(-1) @ v
    found = windowed_attention(q, k, v, window)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_orthogonalise_evens_out_singular_values() -> None:
    torch.manual_seed(0)
    for shape in ((2, 12, 30), (2, 30, 12)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.5 and values.max() < 1.3


def test_accumulated_gradient_is_the_batch_s_and_the_same_for_any_threads() -> None:
    torch.manual_seed(0)
    config = MiniConfig(
        n_vocab=50, n_layers=4, n_embd=32, n_heads=2, n_kv_heads=1, head_dim=16, n_ff=32, window=4
    )
    model = Mini(config)
    ids, weights = torch.randint(0, 50, (7, 601)), torch.rand(7, 600).clamp(0.5) - 0.5
    mean = loss_sum(model, ids, weights) / weights.sum()
    expected = torch.autograd.grad(mean, list(model.parameters()))
    found = []
    for threads in (1, 3):
        model.zero_grad()
        with ThreadPoolExecutor(threads) as pool:
            accumulate(model, Batch(ids.numpy(), weights.numpy()), pool)
        found.append([p.grad for p in model.parameters()])
    for one, three, g in zip(*found, expected, strict=True):
        assert torch.equal(one, three)
        torch.testing.assert_close(one, g, rtol=1e-4, atol=1e-6)


def test_the_loss_counts_what_has_weight() -> None:
    torch.manual_seed(0)
    config = MiniConfig(
        n_vocab=50, n_layers=4, n_embd=32, n_heads=2, n_kv_heads=1, head_dim=16, n_ff=32
    )
    model, ids = Mini(config), torch.randint(0, 50, (2, 9))
    weights = torch.zeros(2, 8)
    weights[0, 3], weights[1, 7] = 2.0, 0.5
    p = model(ids[:, :-1]).log_softmax(-1)
    expected = -2.0 * p[0, 3, ids[0, 4]] - 0.5 * p[1, 7, ids[1, 8]]
    torch.testing.assert_close(loss_sum(model, ids, weights), expected)


def test_paragraphs_are_unwrapped_in_both_habits_of_plain_text() -> None:
    long = "word " * 30
    assert paragraphs(f"Title\n\n{long}\n\n“Quoted” — so.\n") == [
        "Title",
        long.strip(),
        '"Quoted" -- so.',
    ]
    wrapped = ("a line of a wrapped paragraph that runs to sixty letters or so\n" * 3) + "end.\n"
    found = paragraphs(wrapped * 2)
    assert len(found) == 2
    assert found[0].endswith("or so end.")
    assert paragraphs("") == []


def test_words_per_sentence() -> None:
    assert words_per_sentence("One two three. Four?") == 2.0


def test_learning_rate_rises_holds_and_falls_to_zero() -> None:
    shares = [rate(step / 1000, 0.5) for step in range(1001)]
    assert shares[0] < 0.05 and shares[100] == shares[499] == 1.0
    assert 0.49 < shares[750] < 0.51 and shares[1000] == 0.0


@pytest.mark.parametrize("shape", RECIPES)
def test_the_stages_of_a_shape_are_its_whole_run(shape: str) -> None:
    recipe = RECIPES[shape]
    stages = recipe.stages
    assert sum(stage.share for stage in stages) == pytest.approx(1.0)
    assert [stage.length for stage in stages] == sorted(stage.length for stage in stages)
    assert all(stage.repeats + stage.recall <= 1 for stage in stages)
    # First of all, to look back at all: what grows from a model that recalls does already.
    assert recipe.grown or stages[0].repeats > 0.5
    assert recipe.goals[0] > 0 and sorted(recipe.goals) == list(recipe.goals)


def test_a_run_goes_on_to_its_next_goal() -> None:
    assert [goal_of(n, (10, 13)) for n in (0, 9, 10, 12, 13, 14)] == [10, 10, 13, 13, 13, 13]
