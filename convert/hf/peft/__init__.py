"""Low-rank adapters as PEFT saves them (adapter_config.json, adapter_model.safetensors) to GGUF.

Facts of the files that result are those of llama.cpp's `convert_lora_to_gguf.py`.
"""

from .convert import convert_adapter as convert_adapter
from .settings import is_adapter as is_adapter
