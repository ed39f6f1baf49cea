"""Makes perplexity.json: llama.cpp's perplexity of trained models, by its tool's definition.

python tests/runtime/golden/make_perplexity.py DATA_FOLDER       (needs llama-cpp-python)
"""

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

import kvarn

TEXT, N_BYTES = "text/doyle_hound_1902.txt", 20_000
MODELS = {
    "weights/stories260K/stories260K-f32.gguf": 256,
    "weights/babyllama-tok105/babyllama-tok105-f32.gguf": 128,
}


def perplexity(path: Path, text: bytes, n_ctx: int) -> float:
    model = llama_cpp.Llama(str(path), n_ctx=n_ctx, logits_all=True, verbose=False)
    # llama.cpp aborts on text outside a vocabulary without bytes, so the ids are kvarn's.
    ids = kvarn.load_tokenizer(path).encode(text, bos=True)
    losses: list[float] = []
    for start in range(0, len(ids) - n_ctx + 1, n_ctx):
        piece = [model.token_bos(), *ids[start + 1 : start + n_ctx]]
        model.reset()
        model.eval(piece)
        logits = np.array(model.scores[: n_ctx - 1], np.float64)
        top = logits.max(1, keepdims=True)
        logs = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
        losses += [-logs[i, piece[i + 1]] for i in range(n_ctx // 2, n_ctx - 1)]
    return float(np.exp(np.mean(losses)))


if __name__ == "__main__":
    data = Path(sys.argv[1])
    content = (data / TEXT).read_bytes()[:N_BYTES]
    found = {name: perplexity(data / name, content, n_ctx) for name, n_ctx in MODELS.items()}
    golden = {"text": TEXT, "n_bytes": N_BYTES, "n_ctx": MODELS, "perplexity": found}
    out = Path(__file__).with_name("perplexity.json")
    out.write_text(json.dumps(golden, indent=2) + "\n")
