"""Write adapters/*.json: what PEFT and llama.cpp's converter make of tiny stored adapters.

Made with PEFT 0.21, transformers 5.24, torch 2.13 and the converter packaged with llama-cpp-python
0.3.36: `python -m tests.convert.golden.make_adapters FOLDER_OF_LLAMA_CPP [NAME…]`. Needs none of
kvarn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors import safe_open

from tests.convert import stored_adapters, stored_models
from tests.convert.golden.hybrids_to_make import DELTA
from tests.convert.golden.models_to_make import SIZES

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PATTERNS = {
    "rank_pattern": {"down_proj": 7, r"^model\.layers\.1\.self_attn\.q_proj": 2},
    "alpha_pattern": {"layers.0.self_attn.k_proj": 5, "down_proj": 3},
}
QWEN3 = SIZES | {"head_dim": 32, "num_key_value_heads": 1}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        SIZES | {"tie_word_embeddings": False},
        {"r": 4, "lora_alpha": 2, "target_modules": [*ALL, "lm_head"]},
    ),
    "llama-rslora": (
        "LlamaConfig",
        SIZES | {"num_key_value_heads": 4},
        {"r": 5, "lora_alpha": 1, "use_rslora": True, "target_modules": ["q_proj", "k_proj"]},
    ),
    "qwen3": ("Qwen3Config", QWEN3, {"r": 3, "lora_alpha": 2, "target_modules": ALL} | PATTERNS),
    "qwen3-rslora": (
        "Qwen3Config",
        QWEN3,
        {"r": 3, "lora_alpha": 1, "use_rslora": True, "target_modules": ALL} | PATTERNS,
    ),
    "gemma3": (
        "Gemma3TextConfig",
        SIZES | {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32},
        {"r": 4, "lora_alpha": 2, "target_modules": ALL},
    ),
    "phi3": (
        "Phi3Config",
        SIZES,
        {"r": 4, "lora_alpha": 2, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj"]},
    ),
    # Its heads of values stand in another order in GGUF files: rows of B, and columns of A.
    "qwen35": (
        "Qwen3_5TextConfig",
        SIZES | DELTA,
        {
            "r": 4,
            "lora_alpha": 2,
            "target_modules": [*ALL, "in_proj_qkv", "in_proj_z", "out_proj"],
        },
    ),
}


def main() -> None:
    """Make all cases, or those that are named."""
    llama_cpp, *names = sys.argv[1:]
    for name in names or CASES:
        made = stored_adapters.FOLDER / f"{name}.json"
        made.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            stored = _make(name, Path(folder), Path(llama_cpp))
        made.write_text(
            "{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in stored.items()) + "\n}\n"
        )
        print(made, made.stat().st_size)


def _make(name: str, folder: Path, llama_cpp: Path) -> dict[str, Any]:
    class_name, sizes, settings = CASES[name]
    config = getattr(transformers, class_name)(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / "model")
    wanted = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    peft.get_peft_model(model, wanted).save_pretrained(folder / "adapter")
    made: dict[str, Any] = {
        "config": json.loads((folder / "model/config.json").read_text()),
        "model_shapes": _shapes(folder / "model/model.safetensors"),
        "settings": json.loads((folder / "adapter/adapter_config.json").read_text()),
        "shapes": _shapes(folder / "adapter/adapter_model.safetensors"),
    }
    made["settings"]["base_model_name_or_path"] = "somebody/tiny"
    stored = stored_adapters.StoredAdapter(**made, tensors=None, logits=[])
    stored.write_model(folder / "model")
    stored.write(folder / "adapter")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.float32, attn_implementation="eager"
    )
    adapted = peft.PeftModel.from_pretrained(model, folder / "adapter").float().eval()
    with torch.no_grad():
        logits = adapted(torch.tensor([stored_models.IDS])).logits[0].numpy()
    rows = [[float(f"{x:.7g}") for x in row] for row in logits[stored_models.KEPT]]
    return made | {"tensors": _converted(folder, llama_cpp), "logits": rows}


def _shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, "pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def _converted(folder: Path, llama_cpp: Path) -> dict[str, str] | None:
    """The tensors of llama.cpp's file; None where its converter fails."""
    sys.path.insert(0, str(llama_cpp / "gguf-py"))
    import gguf

    # The converter of qwen35 expects layers that draft tokens.
    config = folder / "model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"mtp_num_hidden_layers": 1}))
    script, out = llama_cpp / "convert_lora_to_gguf.py", folder / "out.gguf"
    arguments = ["--base", str(folder / "model"), "--outfile", str(out), str(folder / "adapter")]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | {"PYTHONPATH": str(llama_cpp)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-2000:])
        return None
    return {
        t.name: stored_models.described(t.name, t.tensor_type.name, t.data, t.shape.tolist()[::-1])
        for t in gguf.GGUFReader(out).tensors
    }


if __name__ == "__main__":
    main()
