"""llama.cpp's own samplers on given logits, and the golden cases made with them.

Run with llama-cpp-python (0.3.36) installed to write golden.json: `python llama_chain.py`.
"""

import ctypes
import json
import random
from pathlib import Path
from typing import Any

DEFAULTS = {
    "logit_bias": {},
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "top_k": 0,
    "typical_p": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "temp": 1.0,
}


def survivors(logits: list[float], recent: list[int], **options: Any) -> dict[int, float]:
    """Token → probability after llama.cpp's default chain; absent options are off."""
    import llama_cpp as lc

    o = DEFAULTS | options
    n = len(logits)
    chain = lc.llama_sampler_chain_init(lc.llama_sampler_chain_default_params())
    bias = (lc.llama_logit_bias * len(o["logit_bias"]))(*o["logit_bias"].items())
    penalties = [o[f"{name}_penalty"] for name in ("repeat", "frequency", "presence")]
    for sampler in (
        lc.llama_sampler_init_logit_bias(n, len(bias), bias),
        lc.llama_sampler_init_penalties(n, o["repeat_last_n"], *penalties),
        lc.llama_sampler_init_top_k(o["top_k"]),
        lc.llama_sampler_init_typical(o["typical_p"], 0),
        lc.llama_sampler_init_top_p(o["top_p"], 0),
        lc.llama_sampler_init_min_p(o["min_p"], 0),
        lc.llama_sampler_init_temp_ext(o["temp"], 0.0, 1.0),
        lc.llama_sampler_init_dist(0),
    ):
        lc.llama_sampler_chain_add(chain, sampler)
    for token in recent:
        lc.llama_sampler_accept(chain, token)
    data = (lc.llama_token_data * n)(*((i, logit, 0.0) for i, logit in enumerate(logits)))
    array = lc.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
    lc.llama_sampler_apply(chain, ctypes.byref(array))
    kept = {array.data[i].id: array.data[i].p for i in range(array.size)}
    lc.llama_sampler_free(chain)
    return kept


def random_case(rng: random.Random, n_vocab: int) -> dict[str, Any]:
    """Logits, recent tokens and a random choice of options that are on."""
    spread = rng.choice([0.5, 2.0, 6.0])
    recent = [rng.randrange(n_vocab) for _ in range(rng.choice([0, 3, 80]))]
    on = {
        "logit_bias": {rng.randrange(n_vocab): rng.uniform(-5, 5) for _ in range(3)},
        "repeat_last_n": rng.choice([0, 1, 5, 64]),
        "repeat_penalty": rng.uniform(0.8, 1.5),
        "frequency_penalty": rng.uniform(-1, 1),
        "presence_penalty": rng.uniform(-1, 1),
        "top_k": rng.choice([1, 2, n_vocab // 3, n_vocab, n_vocab + 1]),
        "typical_p": rng.uniform(0.0, 1.0),
        "top_p": rng.uniform(0.0, 1.0),
        "min_p": rng.uniform(0.0, 0.5),
        "temp": rng.choice([0.0, 0.3, 1.7]),
    }
    return {
        "logits": [round(rng.gauss(0, spread), 3) for _ in range(n_vocab)],
        "recent": recent,
        "options": {name: value for name, value in on.items() if rng.random() < 0.4},
    }


def main() -> None:
    """Writes 60 small cases: each option alone, then together."""
    rng = random.Random(1)
    cases = []
    for name in DEFAULTS:
        case = random_case(rng, 40)
        while set(case["options"]) != {name}:
            case = random_case(rng, 40)
        cases.append(case)
    cases += [random_case(rng, rng.choice([1, 2, 7, 40])) for _ in range(50)]
    for case in cases:
        case["kept"] = survivors(case["logits"], case["recent"], **case["options"])
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(__file__).with_name("golden.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
