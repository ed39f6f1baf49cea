"""Where each weight goes: transformers' rows in llama.cpp's order, by the index alone.

That the whole model computes the same is test_architectures.py's, which needs transformers.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf import convert
from kvarn.convert.quantize.mixes import mix_of

from . import hf_folders

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
HEAD_DIM = 16


def order(n_rows: int) -> list[int]:
    """Row 2i + r of a head in llama.cpp is row i + r E/2 in transformers."""
    return [
        head + i + r * (HEAD_DIM // 2)
        for head in range(0, n_rows, HEAD_DIM)
        for i in range(HEAD_DIM // 2)
        for r in range(2)
    ]


@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_a_llama_keeps_every_weight_and_turns_queries_and_keys(
    tmp_path: Path, chunk_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunk_rows is not None:  # less than a head at a time: whole heads are read all the same
        module = import_module("kvarn.convert.hf.convert")
        monkeypatch.setattr(module, "CHUNK_BYTES", 4 * 64 * chunk_rows)
    hf_folders.write_llama(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "m.gguf", mix_of("f32"))
    written = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    wanted = hf_folders.llama_tensors()
    for name, values in wanted.items():
        if name.startswith("model.layers."):
            layer, part = name.removeprefix("model.layers.").split(".", 1)
            new_name = f"blk.{layer}.{NAMES[part.removesuffix('.weight')]}.weight"
            turned = part.startswith(("self_attn.q", "self_attn.k"))
            expected = values[order(len(values))] if turned else values
            np.testing.assert_array_equal(written[new_name], expected, new_name)
    n_tokens = len(written["token_embd.weight"])
    np.testing.assert_array_equal(
        written["token_embd.weight"], wanted["model.embed_tokens.weight"][:n_tokens]
    )
    np.testing.assert_array_equal(written["output.weight"], wanted["lm_head.weight"][:n_tokens])
    np.testing.assert_array_equal(written["output_norm.weight"], wanted["model.norm.weight"])
    assert len(written) == len(wanted)


def test_norms_of_single_heads_become_one_tensor(tmp_path: Path) -> None:
    tensors = hf_folders.llama_tensors()
    heads = {n: np.full(HEAD_DIM, n, np.float32) for n in range(4)}
    for layer, (kind, n_heads) in ((i, part) for i in range(2) for part in (("q", 4), ("k", 2))):
        stem = f"model.layers.{layer}.self_attn.{kind}_layernorm.norms"
        tensors |= {f"{stem}.{n}.weight": heads[n] for n in reversed(range(n_heads))}
    config = {"architectures": ["StableLmForCausalLM"]}
    hf_folders.write_llama(tmp_path / "hf", config, tensors)
    convert(tmp_path / "hf", tmp_path / "m.gguf", mix_of("f32"))
    written = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    np.testing.assert_array_equal(written["blk.1.attn_q_norm.weight"], np.stack([*heads.values()]))
    assert written["blk.0.attn_k_norm.weight"].shape == (2, HEAD_DIM)
    del tensors["model.layers.0.self_attn.q_layernorm.norms.1.weight"]
    hf_folders.write_llama(tmp_path / "hf", config, tensors)
    with pytest.raises(
        ConvertError, match=r"hold no model\.layers\.0\.self_attn\.q_layernorm\.norms\.1\.weight"
    ):
        convert(tmp_path / "hf", tmp_path / "m2.gguf", mix_of("f32"))
