"""A trained run to GGUF: `python -m lab.mini.export RUN_FOLDER OUT.gguf`.

Matrices become Q8_0, norms stay F32; the metadata is what llama.cpp's converter writes for the
architecture.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from torch import Tensor

from kvarn.system.files import new_file

from .model import MiniConfig
from .texts.data import BOS, EOS, PRE_TOKENIZER

CONTEXT_LENGTH = {"cohere2": 131_072, "llama": 16_384}
"""Without positions in the global layers, models recall far beyond the trained length
(docs/internals/mini.md); with rope in all layers they hardly do."""
NAMES = {"cohere2": "kvarn-mini", "llama": "kvarn-mini-llama"}
DESCRIPTION = (
    "A small base model of the kvarn runtime: continues English prose, and finds again what a long "
    "context held. Trained from nothing on public-domain English novels and on recall tasks made "
    "by code, with the scripts in kvarn's folder lab/mini/."
)


def add_description(writer: gguf.GGUFWriter, name: str, n_parameters: int) -> None:
    """The `general.*` keys."""
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_basename(name)
    writer.add_size_label(gguf.size_label(n_parameters, n_parameters, 0, 0))
    writer.add_description(DESCRIPTION)
    writer.add_license("mit")
    writer.add_tags(["text-generation"])
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_shape(writer: gguf.GGUFWriter, config: MiniConfig) -> None:
    """The keys of the architecture, such as `cohere2.block_count`."""
    writer.add_block_count(config.n_layers)
    writer.add_context_length(CONTEXT_LENGTH[config.architecture])
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_vocab_size(config.n_vocab)
    if config.architecture == "llama":
        writer.add_layer_norm_rms_eps(config.norm_eps)
        return
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_logit_scale(config.logit_scale)
    writer.add_sliding_window(config.window)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """The `tokenizer.*` keys from a tokenizers file of byte-level BPE."""
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types([control if t in (BOS, EOS) else normal for t in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(model["vocab"][BOS])
    writer.add_eos_token_id(model["vocab"][EOS])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def add_tensors(writer: gguf.GGUFWriter, config: MiniConfig, weights: Mapping[str, Tensor]) -> None:
    """Every parameter under its own name, which is GGUF's: matrices Q8_0, vectors F32.

    llama has no scale of logits: it goes into the last norm.
    """
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in weights.items():
        data = tensor.detach().float().numpy()
        if name == "output_norm.weight" and config.architecture == "llama":
            data = data * np.float32(config.logit_scale)
        if data.ndim == 2:
            writer.add_tensor(name, quantize(data, q8_0), raw_dtype=q8_0)
        else:
            writer.add_tensor(name, data)


def write_gguf(
    path: Path, config: MiniConfig, weights: Mapping[str, Tensor], tokenizer: Path, name: str = ""
) -> None:
    """Writes the whole model file in one piece: a reader never sees half of it.

    name: of the model; "": that of its architecture.

    Raises what `new_file` raises.
    """
    with new_file(path) as part:
        writer = gguf.GGUFWriter(part, config.architecture)
        n_parameters = sum(t.numel() for t in weights.values())
        add_description(writer, name or NAMES[config.architecture], n_parameters)
        add_shape(writer, config)
        add_tokenizer(writer, tokenizer)
        add_tensors(writer, config, weights)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main() -> None:
    """Entry point of the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder that lab.mini.train wrote")
    parser.add_argument("out", type=Path, help="GGUF file to write")
    parser.add_argument("--name", default="", help="of the model (default: its architecture's)")
    args = parser.parse_args()
    checkpoint = args.run / "checkpoint.pt"
    if not checkpoint.is_file():
        raise SystemExit(f"exporting: no checkpoint at {checkpoint}; run lab.mini.train first")
    saved = torch.load(checkpoint, weights_only=True)
    config = MiniConfig(**saved["config"])
    write_gguf(args.out, config, saved["model"], args.run / "tokenizer.json", args.name)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes, trained for {saved['step']} steps")


if __name__ == "__main__":
    main()
