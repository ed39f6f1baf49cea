"""Models as Hugging Face's libraries save them (safetensors, config.json, tokenizer) to GGUF.

Facts of the files that result (keys, names, order of rows) are those of llama.cpp's converter.
"""

from .convert import convert as convert
