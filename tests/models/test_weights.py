"""Tensors to weights: which are asked for, and in which words a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvarn.models import ModelConfig, ModelError
from kvarn.models.weights import Weights
from kvarn.ops.cpu import Cpu
from kvarn.ops.device import Device
from kvarn.ops.types import QUANT_TYPES
from kvarn.system.errors import KvarnError

from . import plain


def load(golden: Any, plain: ModuleType, **changes: Any) -> Weights:
    """Load a tiny model with some tensors replaced, or removed by None."""
    arrays = golden.arrays | {name.replace("__", "."): array for name, array in changes.items()}
    tensors = plain.as_tensors({name: a for name, a in arrays.items() if a is not None})
    return Weights.load(tensors, ModelConfig.from_metadata(golden.metadata))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama-mha", {"token_embd__weight": None}, "tensor token_embd.weight is missing"),
        ("llama-mha", {"blk__2__ffn_down__weight": None}, "blk.2.ffn_down.weight is missing"),
        ("llama-mha", {"output_norm__weight": None}, "tensor output_norm.weight is missing"),
        (
            "llama-mha",
            {"blk__1__attn_k__weight": np.zeros((63, 64), np.float32)},
            "blk.1.attn_k.weight has shape (63, 64), expected (64, 64)",
        ),
        (
            "llama-mha",
            {"blk__0__attn_norm__weight": np.zeros((2, 64), np.float32)},
            "blk.0.attn_norm.weight has shape (2, 64), expected (64,)",
        ),
        (
            "llama-mha",
            {"token_embd__weight": np.zeros((96, 64), np.float32)},
            "token_embd.weight has shape (96, 64), expected (97, 64)",
        ),
        (
            "llama-mha",
            {"blk__3__attn_norm__weight": np.zeros(64, np.float32)},
            "'blk.3.attn_norm.weight' is unknown to architecture llama (1 such tensors)",
        ),
        (
            "llama-mha",
            {"blk__0__attn_q_norm__weight": np.zeros(16, np.float32)},
            "'blk.0.attn_q_norm.weight' is unknown to architecture llama",
        ),
        (
            "llama-freqs",
            {"rope_freqs__weight": np.zeros(16, np.float32)},
            "rope_freqs.weight holds zeros",
        ),
        (
            "phi3-long",
            {"rope_factors_long__weight": np.full(6, np.inf, np.float32)},
            "rope_factors_long.weight holds zeros or values that are not finite",
        ),
        (
            "cohere2",
            {"output__weight": np.zeros((97, 64), np.float32)},
            "'output.weight' is unknown",
        ),
        ("qwen3", {"blk__0__attn_k_norm__weight": None}, "blk.0.attn_k_norm.weight is missing"),
        ("gemma2", {"blk__0__post_ffw_norm__weight": None}, "post_ffw_norm.weight is missing"),
        ("phi3", {"blk__0__attn_qkv__weight": None}, "blk.0.attn_q.weight is missing"),
        (
            "qwen3moe",
            {"blk__1__ffn_gate_inp__weight": None},
            "ffn_gate_inp.weight is missing",
        ),
        (
            "qwen3moe",
            {"blk__1__ffn_up_exps__weight": np.zeros((4, 33, 80), np.float32)},
            "blk.1.ffn_up_exps.weight has shape (4, 33, 80), expected (5, 33, 80)",
        ),
        (
            "ernie4_5-moe",
            {"blk__1__exp_probs_b__bias": np.zeros(4, np.float32)},
            "blk.1.exp_probs_b.bias has shape (4,), expected (5,)",
        ),
        (
            "llama-experts",
            {"blk__0__exp_probs_b__bias": np.zeros(5, np.float32)},
            "'blk.0.exp_probs_b.bias' is unknown to architecture llama",
        ),
    ],
)
def test_wrong_tensors_are_named(
    name: str,
    changes: dict[str, Any],
    words: str,
    golden_models: Callable[[str], Any],
    plain_ops: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain_ops.Plain, "weight", None)  # no matrix takes memory before
    with pytest.raises(ModelError) as error:
        load(golden_models(name), plain_ops, **changes)
    assert words in str(error.value)


def test_the_output_is_the_embedding_when_there_is_no_other(
    golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    tied = load(golden_models("llama-odd"), plain_ops)
    assert tied.output.weight is tied.token_embd
    untied = load(golden_models("llama-mha"), plain_ops)
    assert untied.output.weight is not untied.token_embd


def test_fused_matrices_and_biases_are_split_by_rows(
    golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    golden = golden_models("llama-fused")
    attention = load(golden, plain_ops).layers[1].mixers[0]
    parts = (attention.q, attention.k, attention.v)
    assert [part.weight.matrix.shape for part in parts] == [(64, 64), (32, 64), (32, 64)]
    whole = np.concatenate([part.weight.matrix for part in parts])
    np.testing.assert_array_equal(whole, golden.arrays["blk.1.attn_qkv.weight"])
    bias = np.concatenate([part.bias for part in parts if part.bias is not None])
    np.testing.assert_array_equal(bias, golden.arrays["blk.1.attn_qkv.bias"])


def test_a_fused_matrix_may_have_its_biases_apart(
    golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    golden = golden_models("llama-fused")
    bias = golden.arrays["blk.0.attn_qkv.bias"]
    layer = load(
        golden,
        plain_ops,
        blk__0__attn_qkv__bias=None,
        blk__0__attn_q__bias=bias[:64],
        blk__0__attn_k__bias=bias[64:96],
        blk__0__attn_v__bias=bias[96:],
    ).layers[0]
    np.testing.assert_array_equal(layer.mixers[0].v.bias, bias[96:])


def test_a_fused_stack_is_gate_and_up(
    golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    golden = golden_models("qwen3moe")
    gate, up = (golden.arrays[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up"))
    changes = {
        "blk__0__ffn_gate_exps__weight": None,
        "blk__0__ffn_up_exps__weight": None,
        "blk__0__ffn_gate_up_exps__weight": np.concatenate([gate, up], axis=1),
    }
    experts = load(golden, plain_ops, **changes).layers[0].feed_forward.experts
    np.testing.assert_array_equal(experts.gate.matrices, gate)
    np.testing.assert_array_equal(experts.up.matrices, up)


def test_a_token_reads_the_bytes_of_its_experts(golden_models: Callable[[str], Any]) -> None:
    golden = golden_models("ernie4_5-moe")
    weights = Weights.load(
        plain.as_tensors(golden.arrays), ModelConfig.from_metadata(golden.metadata)
    )
    matrices = {name: a.nbytes for name, a in golden.arrays.items() if a.ndim > 1}
    read = sum(n * 2 / 5 if "_exps" in name else n for name, n in matrices.items())
    assert weights.bytes_per_token == read - matrices["token_embd.weight"]


def test_a_device_without_experts_refuses_them_before_it_has_any_tensor(
    golden_models: Callable[[str], Any],
) -> None:
    class Other(Cpu):
        name = "other"
        weight = put = None  # type: ignore[assignment]
        check_experts = Device.check_experts

    golden = golden_models("ernie4_5-moe")
    tensors, config = plain.as_tensors(golden.arrays), ModelConfig.from_metadata(golden.metadata)
    words = r"loading blk\.1\.ffn_gate_exps\.weight: the device other does not compute"
    with pytest.raises(KvarnError, match=words):
        Weights.load(tensors, config, device=Other())


class Counted:
    """A tensor of Q4_0 zeros that counts how often it was let go of."""

    type = QUANT_TYPES["Q4_0"]

    def __init__(self, name: str, shape: tuple[int, int]) -> None:
        self.name, self.shape, self.released = name, shape, 0
        self.data = np.zeros((shape[0], shape[1] // 32 * 18), np.uint8)

    def release(self) -> None:
        self.released += 1


def test_matrices_that_are_laid_out_anew_let_go_of_the_file(
    golden_models: Callable[[str], Any],
) -> None:
    golden = golden_models("llama-fused")
    tensors = plain.as_tensors(golden.arrays)
    counted = [
        Counted("blk.0.attn_qkv.weight", (128, 64)),
        Counted("blk.0.attn_output.weight", (64, 64)),
    ]
    tensors.update((tensor.name, tensor) for tensor in counted)
    layer = Weights.load(tensors, ModelConfig.from_metadata(golden.metadata)).layers[0]
    attention = layer.mixers[0]
    for projection in (attention.q, attention.k, attention.v, attention.output):
        assert projection.weight.treatment == "repacked"
    assert [tensor.released for tensor in counted] == [1, 1]


def test_a_vocabulary_alone_is_no_model(golden_models: Any) -> None:
    golden = golden_models("llama-mha")
    with pytest.raises(ModelError, match="holds no tensors, only metadata"):
        Weights.load({}, ModelConfig.from_metadata(golden.metadata))
