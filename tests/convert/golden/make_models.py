"""Write models/*.json: what transformers and llama.cpp's converter make of tiny stored models.

Made with transformers 5.24, torch 2.13 and the converter packaged with llama-cpp-python 0.3.36:
`python -m tests.convert.golden.make_models FOLDER_OF_LLAMA_CPP [NAME…]`. Needs none of kvarn.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from tests.convert import stored_models
from tests.convert.golden import hybrids_to_make, models_to_make
from tests.convert.golden.hybrids_to_make import AS_PUBLISHED
from tests.convert.golden.models_to_make import SIZES

CASES = models_to_make.CASES | hybrids_to_make.CASES


def main() -> None:
    """Make all cases, or those that are named."""
    llama_cpp, *names = sys.argv[1:]
    sys.path[:0] = [str(Path(llama_cpp) / "gguf-py"), llama_cpp]
    for name in names or CASES:
        made = stored_models.FOLDER / f"{name}.json"
        made.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            made.write_text(_text(_make(name, Path(folder) / "hf")))
        print(made, made.stat().st_size)


def _make(name: str, folder: Path) -> dict[str, Any]:
    class_name, settings = CASES[name]
    config = getattr(transformers, class_name)(**settings)
    sees = "text_config" in settings
    auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    if not (folder / "config.json").is_file():
        auto.from_config(config).save_pretrained(folder)
    shapes = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for tensor in file.keys():  # noqa: SIM118
            shapes[tensor] = list(file.get_slice(tensor).get_shape())
    saved = json.loads((folder / "config.json").read_text())
    more = {"architectures": saved["architectures"]}
    if name.endswith("mxfp4"):
        shapes, more["quantization_config"] = _packed(shapes), {"quant_method": "mxfp4"}
    if name.endswith("fused"):
        shapes = _fused(shapes)
    saved |= more | AS_PUBLISHED.get(name, {})
    saved = {key: value for key, value in saved.items() if value is not None}
    stored = stored_models.Stored(saved, shapes, {}, {}, [])
    stored.write(folder)
    loading: dict[str, Any] = {}
    if name.endswith("mxfp4"):
        loading["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model = auto.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **loading
    )
    model = model.float().eval()
    with torch.no_grad():
        logits = model(torch.tensor([stored_models.IDS])).logits[0].numpy()
    keys, tensors = _converted(folder)
    rows = [[float(f"{x:.7g}") for x in row] for row in logits[stored_models.KEPT]]
    return {
        "config": stored.config,
        "shapes": shapes,
        "keys": keys,
        "tensors": tensors,
        "logits": rows,
    }


def _packed(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Shapes with the experts as MXFP4: blocks of 32 weights of a row, 16 bytes and a scale."""
    packed = {}
    for name, shape in shapes.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = shape
            continue
        n, n_in, n_out = shape
        packed[f"{name}_blocks"] = [n, n_out, n_in // 32, 16]
        packed[f"{name}_scales"] = [n, n_out, n_in // 32]
    return packed


def _fused(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Shapes with experts stacked, as Qwen3.5's makers store them, and layers that draft."""
    fused = {name: shape for name, shape in shapes.items() if ".experts." not in name}
    for name, shape in shapes.items():
        stem, _, end = name.partition(".experts.0.")
        if end == "gate_proj.weight":
            fused[f"{stem}.experts.gate_up_proj"] = [5, 2 * shape[0], shape[1]]
        elif end == "down_proj.weight":
            fused[f"{stem}.experts.down_proj"] = [5, *shape]
    return fused | {"mtp.fc.weight": [64, 128], "mtp.layers.0.mlp.gate.weight": [5, 64]}


def _converted(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys and tensors of llama.cpp's file, without its vocabulary and draft layers."""
    import gguf
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture
    from conversion.llama import LlamaModel

    out = folder / "out.gguf"
    hparams = ModelBase.load_hparams(folder, False)
    # Gemma's converter counts the tokens, to cut the embedding.
    vocab = {str(i): i for i in range(SIZES["vocab_size"])}
    counted = {"model": {"vocab": vocab}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(counted))
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    kind.set_vocab = lambda self: None
    if getattr(kind, "supports_mtp_export", False):
        kind.no_mtp = True
    # transformers would add settings of experts where there are none.
    hparams = json.loads((folder / "config.json").read_text())
    if rotated := hparams.get("attn_rotary_emb"):
        _permute_rotated(LlamaModel, rotated)
    more = {"hparams": hparams} if hparams["model_type"] == "nemotron_h" else {}
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, out, eager=True, **more).write()
    reader = gguf.GGUFReader(out)
    left_out = ("general.", "tokenizer.", "GGUF.")
    keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith(left_out)}
    tensors = {
        t.name: stored_models.described(t.name, t.tensor_type.name, t.data, t.shape.tolist()[::-1])
        for t in reader.tensors
    }
    return keys, tensors


def _permute_rotated(llama: Any, n: int) -> None:
    """Let the converter permute the n rotated dimensions of each head alone. It permutes all of
    them, and llama.cpp then computes other logits than transformers."""
    whole = llama.permute

    def permute(weights: torch.Tensor, n_head: int, n_head_kv: int) -> torch.Tensor:
        heads = weights.reshape(n_head_kv, -1, weights.shape[-1])
        first = heads[:, :n].reshape(n_head_kv * n, -1)
        rotated = whole(first, n_head, n_head_kv).reshape(n_head_kv, n, -1)
        return torch.cat([rotated, heads[:, n:]], 1).reshape(weights.shape)

    llama.permute = staticmethod(permute)


def _text(stored: dict[str, Any]) -> str:
    return "{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in stored.items()) + "\n}\n"


if __name__ == "__main__":
    main()
