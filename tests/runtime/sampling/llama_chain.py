"""llama.cpp's own samplers on given logits, and the golden cases made with them.

Run with llama-cpp-python (0.3.36) installed to write golden.json, traces.json and breakers.json:
`python llama_chain.py`.
"""

import ctypes
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODEL = HERE.parents[2] / "runtime" / "loading" / "kvarn-mini.gguf"
ORDER = "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature".split()
DEFAULTS = {
    "logit_bias": {},
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": [],
    "top_n_sigma": -1.0,
    "top_k": 0,
    "typical_p": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "temp": 1.0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "samplers": ORDER,
}


def _sampler(name: str, o: dict[str, Any], n: int, vocab: Any) -> Any:
    import llama_cpp as lc

    breakers = [text.encode() for text in o["dry_sequence_breakers"]]
    dry = [o[f"dry_{key}"] for key in ("multiplier", "base", "allowed_length", "penalty_last_n")]
    penalties = [o[f"{key}_penalty"] for key in ("repeat", "frequency", "presence")]
    texts = (ctypes.c_char_p * len(breakers))(*breakers)
    match name:
        case "penalties":
            return lc.llama_sampler_init_penalties(n, o["repeat_last_n"], *penalties)
        case "dry":
            return lc.llama_sampler_init_dry(vocab, *dry, texts, len(breakers))
        case "top_n_sigma":
            return lc.llama_sampler_init_top_n_sigma(o["top_n_sigma"])
        case "top_k":
            return lc.llama_sampler_init_top_k(o["top_k"])
        case "typ_p":
            return lc.llama_sampler_init_typical(o["typical_p"], 0)
        case "top_p":
            return lc.llama_sampler_init_top_p(o["top_p"], 0)
        case "min_p":
            return lc.llama_sampler_init_min_p(o["min_p"], 0)
        case "xtc":
            return lc.llama_sampler_init_xtc(o["xtc_probability"], o["xtc_threshold"], 0, 0)
        case "temperature":
            ext = o["dynatemp_range"], o["dynatemp_exponent"]
            return lc.llama_sampler_init_temp_ext(o["temp"], *ext)
        case "adaptive_p":
            return lc.llama_sampler_init_adaptive_p(o["adaptive_target"], o["adaptive_decay"], 3)
    raise ValueError(name)


@contextmanager
def _chain(n: int, options: dict[str, Any], vocab: Any = None) -> Iterator[Any]:
    """The chain that llama.cpp's programs make of the options (`common_sampler_init`)."""
    import llama_cpp as lc

    o = DEFAULTS | options
    chain = lc.llama_sampler_chain_init(lc.llama_sampler_chain_default_params())
    bias = (lc.llama_logit_bias * len(o["logit_bias"]))(*o["logit_bias"].items())
    samplers = [lc.llama_sampler_init_logit_bias(n, len(bias), bias)]
    steering = o["mirostat_tau"], o["mirostat_eta"]
    if o["mirostat"]:
        samplers.append(lc.llama_sampler_init_temp(o["temp"]))
        if o["mirostat"] == 1:
            samplers.append(lc.llama_sampler_init_mirostat(n, 3, *steering, 100))
        else:
            samplers.append(lc.llama_sampler_init_mirostat_v2(3, *steering))
    else:
        samplers += [_sampler(name, o, n, vocab) for name in o["samplers"] if name != "adaptive_p"]
        adapts = "adaptive_p" in o["samplers"]
        end = _sampler("adaptive_p", o, n, vocab) if adapts else lc.llama_sampler_init_dist(0)
        samplers.append(end)
    for sampler in samplers:
        lc.llama_sampler_chain_add(chain, sampler)
    yield chain
    lc.llama_sampler_free(chain)


def _applied(chain: Any, ids: Sequence[int], logits: list[float]) -> tuple[list[Any], int]:
    """(id, logit, p) of what is kept, and the index that was drawn."""
    import llama_cpp as lc

    n = len(logits)
    data = (lc.llama_token_data * n)(*((i, logit, 0.0) for i, logit in zip(ids, logits)))
    array = lc.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
    lc.llama_sampler_apply(chain, ctypes.byref(array))
    kept = [array.data[i] for i in range(array.size)]
    return [(one.id, one.logit, one.p) for one in kept], array.selected


def survivors(logits: list[float], recent: list[int], **options: Any) -> dict[int, float]:
    """Token → probability after llama.cpp's chain; absent options are off."""
    import llama_cpp as lc

    with _chain(len(logits), options) as chain:
        for token in recent:
            lc.llama_sampler_accept(chain, token)
        return {token: p for token, _, p in _applied(chain, range(len(logits)), logits)[0]}


def trace(rows: list[list[float]], **options: Any) -> list[dict[str, Any]]:
    """For each row of logits, what was kept and which token was drawn of it, one after another."""
    import llama_cpp as lc

    steps = []
    with _chain(len(rows[0]), options) as chain:
        for logits in rows:
            kept, index = _applied(chain, range(len(logits)), logits)
            token = kept[index][0]
            lc.llama_sampler_accept(chain, token)
            steps.append({"kept": {i: p for i, _, p in kept}, "drawn": token})
    return steps


def penalised(model: str, recent: list[int], ids: list[int], **options: Any) -> list[float]:
    """Logits of `ids`, 0 before, after DRY with breakers that the model's vocabulary spells."""
    import llama_cpp as lc

    params = lc.llama_model_default_params()
    params.vocab_only = True
    loaded = lc.llama_model_load_from_file(model.encode(), params)
    vocab = lc.llama_model_get_vocab(loaded)
    with _chain(lc.llama_vocab_n_tokens(vocab), options | {"samplers": ["dry"]}, vocab) as chain:
        for token in recent:
            lc.llama_sampler_accept(chain, token)
        logits = {i: logit for i, logit, _ in _applied(chain, ids, [0.0] * len(ids))[0]}
    lc.llama_model_free(loaded)
    return [logits[i] for i in ids]


def random_case(rng: random.Random, n_vocab: int) -> dict[str, Any]:
    """Logits, recent tokens and a random choice of options that are on."""
    spread = rng.choice([0.5, 2.0, 6.0])
    several = rng.randint(1, 3)  # few different ones repeat themselves
    recent = [rng.randrange(n_vocab) % several for _ in range(rng.choice([0, 3, 80]))]
    order = [*ORDER]
    rng.shuffle(order)
    last_n = rng.choice([0, 1, 5, 64])
    on = [
        {"logit_bias": {rng.randrange(n_vocab): rng.uniform(-5, 5) for _ in range(3)}},
        {"repeat_last_n": last_n},
        {"repeat_penalty": rng.uniform(0.8, 1.5)},
        {"frequency_penalty": rng.uniform(-1, 1)},
        {"presence_penalty": rng.uniform(-1, 1)},
        {
            "dry_multiplier": rng.uniform(0.1, 2.0),
            "dry_base": rng.choice([1.0, 1.75, 3.0]),
            "dry_allowed_length": rng.randint(0, 4),
            "dry_penalty_last_n": rng.choice([0, 2, 7, 64, 1000]),
        },
        {"top_n_sigma": rng.uniform(0.1, 3.0)},
        {"top_k": rng.choice([1, 2, n_vocab // 3, n_vocab, n_vocab + 1])},
        {"typical_p": rng.uniform(0.0, 1.0)},
        {"top_p": rng.uniform(0.0, 1.0)},
        {"min_p": rng.uniform(0.0, 0.5)},
        {"xtc_probability": 1.0, "xtc_threshold": rng.uniform(0.0, 0.6)},
        {"temp": rng.choice([0.0, 0.3, 1.7])},
        {"dynatemp_range": rng.uniform(0.1, 2.0), "dynatemp_exponent": rng.uniform(0.3, 3.0)},
        {"samplers": order[: rng.randint(1, len(order))]},
    ]
    options: dict[str, Any] = {}
    for some in on:
        if rng.random() < 0.35:
            options |= some
    if "top_n_sigma" in options:  # the entropy of llama.cpp's typ_p is NaN where a p is 0
        options.pop("typical_p", None)
    return {
        "logits": [round(rng.gauss(0, spread), 3) for _ in range(n_vocab)],
        "recent": recent,
        "options": options,
    }


def random_trace(rng: random.Random, n_vocab: int) -> dict[str, Any]:
    """Rows of logits, and options that steer by what was drawn."""
    options: dict[str, Any] = {"temp": rng.choice([0.7, 1.0, 1.5])}
    # For a few almost equal logits, version 1 keeps more tokens than an int of llama.cpp can count.
    versions = [0, 1, 2] if n_vocab >= 9 else [0, 2]
    if (version := rng.choice(versions)) == 0:
        options |= {
            "samplers": ["top_k", "temperature", "adaptive_p"],
            "top_k": rng.choice([0, 10]),
            "adaptive_target": rng.choice([0.0, 0.2, 0.55, 1.0, -1.0]),
            "adaptive_decay": rng.choice([0.0, 0.5, 0.99]),
        }
    else:
        options |= {
            "mirostat": version,
            "mirostat_tau": rng.choice([0.5, 3.0, 5.0]),
            "mirostat_eta": rng.choice([0.1, 0.9]),
        }
    spread = rng.choice([1.0, 3.0])
    rows = [[round(rng.gauss(0, spread), 3) for _ in range(n_vocab)] for _ in range(8)]
    return {"rows": rows, "options": options}


def breaker_cases(tokenize: Any) -> list[dict[str, Any]]:
    """DRY on texts that repeat themselves, with breakers of one token, of several, of parts."""
    text = 'the cat sat: the cat sat: the cat\nsat down. "the cat" sat: the dog sat: the cat sat:'
    cases = []
    for breakers in ([], ["\n", ":", '"', "*"], ["cat sat"], ["sat: the"], ["at", "zzz"], [" d"]):
        for allowed in (1, 2):
            recent = tokenize(text)
            options = {
                "dry_multiplier": 0.8,
                "dry_allowed_length": allowed,
                "dry_penalty_last_n": 100,
                "dry_sequence_breakers": breakers,
            }
            cases.append({"recent": recent, "ids": sorted(set(recent)), "options": options})
    return cases


def _tokenize(text: str) -> list[int]:
    import llama_cpp

    model = llama_cpp.Llama(str(MODEL), vocab_only=True, verbose=False)
    return list(model.tokenize(text.encode(), add_bos=False))


def _write(name: str, cases: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> None:
    """Writes small cases: each option alone, then together."""
    rng = random.Random(1)
    cases = []
    for name in DEFAULTS:
        if name.startswith(("mirostat", "adaptive")) or name == "dry_sequence_breakers":
            continue
        case = random_case(rng, 40)
        while name not in case["options"] or len(case["options"]) > 4:
            case = random_case(rng, 40)
        cases.append(case)
    cases += [random_case(rng, rng.choice([1, 2, 7, 40])) for _ in range(60)]
    for case in cases:
        case["kept"] = survivors(case["logits"], case["recent"], **case["options"])
    _write("golden.json", cases)
    traces = [random_trace(rng, rng.choice([2, 9, 40])) for _ in range(20)]
    for case in traces:
        case["steps"] = trace(case["rows"], **case["options"])
    _write("traces.json", traces)
    broken = breaker_cases(_tokenize)
    for case in broken:
        case["logits"] = penalised(str(MODEL), case["recent"], case["ids"], **case["options"])
    _write("breakers.json", broken)


if __name__ == "__main__":
    main()
