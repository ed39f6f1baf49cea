"""What a context is said to take, beside what contexts of every kind allocate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvarn.models import ModelConfig, ModelError
from kvarn.runtime.attend import ATTENDS, Attend
from kvarn.runtime.context import Context
from kvarn.runtime.context.planning.request import kv_types
from kvarn.runtime.draft import DraftModel
from kvarn.runtime.draft.request import DraftRequest
from kvarn.runtime.fitting import Estimate, Speeds, advice, estimate, predicted, with_beside
from kvarn.runtime.gguf import GGUFFile, open_gguf
from kvarn.runtime.loading.adapter_files import adapter_files
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk, Ram, StoreError
from kvarn.runtime.store.ram import factory
from kvarn.system.errors import KvarnError

from ...models import tiny_cases, tiny_models
from ...models.adapters import projections, random_pairs, write_adapter

NAMES = (
    "llama-mha gemma3 llama-experts gemma4 qwen35 lfm2 deepseek2 nemotron_h_moe falcon-h1".split()
)
N = 4096 + 500
Told = tuple[GGUFFile, Attend, Estimate]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    case = next(case for case in tiny_cases.CASES if case.name == request.param)
    tiny_models.write(path, case, 1)
    return load(path)


def read(context: Context, n_tokens: int) -> None:
    context.prefill([3 + i % 90 for i in range(n_tokens)])


def open_bytes(model: Model) -> int:
    """Of two open segments in f16, in all layers; rows have 32 numbers at least."""
    layers = model.config.kv_layers
    return 2 * 1024 * sum(4 * layer.n_kv_heads * max(32, layer.head_dim) for layer in layers)


def open_context(model: Model, kv: str, method: str, store: object = None) -> Context:
    return model.context(N, ATTENDS[method](), store=store or Ram(kv, kv))


@pytest.mark.parametrize(("kv", "method"), [("f16", "full"), ("q8_0", "topk"), ("f16", "hash")])
def test_a_context_allocates_what_was_told(model: Model, kv: str, method: str) -> None:
    told = estimate(model.file, N, (kv, kv), ATTENDS[method]())
    with open_context(model, kv, method) as context:
        read(context, N)
        context.index()
        states = context.store.states
        assert told.kv_bytes + told.index_bytes == context.n_bytes
        assert told.state_bytes == (0 if states is None else states.n_bytes)
    assert told.context_bytes == told.kv_bytes + told.index_bytes + told.state_bytes + (
        told.buffer_bytes
    )


def test_a_token_reads_the_weights_that_were_told(model: Model) -> None:
    told = estimate(model.file, N, ("f16", "f16"), ATTENDS["full"]())
    actual = model.transformer.weights.bytes_per_token
    assert told.weights.per_token == pytest.approx(actual, rel=0.05)
    in_file = sum(tensor.data.nbytes for tensor in model.file.tensors.values())
    assert told.weights.resident >= in_file  # all of F32: nothing is repacked into fewer bytes


@pytest.mark.parametrize("method", ["full", "topk"])
def test_a_pack_has_the_bytes_that_were_told(model: Model, method: str, tmp_path: Path) -> None:
    """At most; of the open segment there may be none to two copies."""
    told = estimate(model.file, N, ("f16", "f16"), ATTENDS[method]())
    with open_context(model, "f16", method, Disk(tmp_path / "pack")) as context:
        read(context, N)
        context.index()
    on_disk = sum(path.stat().st_size for path in (tmp_path / "pack").iterdir())
    assert on_disk <= told.disk_bytes <= 1.1 * on_disk + open_bytes(model)


@pytest.mark.parametrize("n", [20_480, 41_200])
def test_a_longer_pack_has_them_more_closely(model: Model, n: int, tmp_path: Path) -> None:
    told = estimate(model.file, n, ("f16", "f16"), ATTENDS["full"]())
    with model.context(n + 1, store=Disk(tmp_path / "pack")) as context:
        read(context, 600)
        context.fill(n)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "pack").iterdir())
    assert on_disk <= told.disk_bytes <= 1.1 * on_disk + open_bytes(model)


@pytest.fixture
def tiny_estimate(tiny_path: Path) -> Told:
    file = open_gguf(tiny_path)
    attend = ATTENDS["full"]()
    return file, attend, estimate(file, 65_536, ("f16", "f16"), attend)


@pytest.mark.parametrize("share", [1.2, 0.7, 0.4, 0.05])
def test_what_is_advised_fits(tiny_estimate: Told, share: float) -> None:
    file, attend, asked = tiny_estimate
    memory = int(asked.weights.resident + asked.buffer_bytes + share * asked.kv_bytes)
    memory = round(memory / 0.9) + 1
    line, words = advice(file, asked, attend, memory, disk=0)
    assert words[words.index("--method") + 1] == "auto"
    k, v = kv_types(words[words.index("--kv-type") + 1])
    chosen = estimate(file, int(words[words.index("--ctx") + 1]), (k, v), attend)
    assert chosen.weights.resident + chosen.kv_bytes + chosen.buffer_bytes <= memory
    assert (share >= 1) == line.startswith("it fits,"), line
    assert (share < 0.28) == line.startswith("at most "), line


def test_a_context_that_does_not_fit_is_told_what_would(
    tiny_estimate: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same by advice and by a context that is refused."""
    file, attend, asked = tiny_estimate
    room = asked.kv_bytes // 8
    memory = round(room + (asked.weights.resident + asked.buffer_bytes) / 0.9)
    line, _ = advice(file, asked, attend, memory, disk=0)
    monkeypatch.setattr(factory, "available_bytes", lambda: room)
    config = ModelConfig.from_metadata(file.metadata)
    with pytest.raises(StoreError) as refused:
        Ram().check(config, asked.n_ctx)
    told = [re.search(r"at most ([\d,]+) tokens fit", text) for text in (line, str(refused.value))]
    assert told[0] and told[1] and told[0][1] == told[1][1] != "0"


def test_disk_is_advised_where_memory_is_short(tiny_estimate: Told) -> None:
    file, attend, asked = tiny_estimate
    memory = int((asked.weights.resident + asked.buffer_bytes + asked.kv_bytes * 0.1) / 0.9)
    _, words = advice(file, asked, attend, memory, disk=asked.disk_bytes)
    assert words[-2:] == ["--kv", "DIR"]
    line, words = advice(file, asked, attend, asked.weights.resident // 2, disk=0)
    assert words == [] and line.startswith("the weights alone do not fit")


def test_estimated_times_are_bytes_and_operations_over_speeds(tiny_estimate: Told) -> None:
    file, _, asked = tiny_estimate
    speed = predicted(file, asked, Speeds(1e9, 2e9, 1e12, 1e12))
    seconds = asked.weights.per_token / 1e9 + asked.kv_bytes / 2e9
    assert speed["tokens_per_second"] == pytest.approx(1 / seconds)
    n, pairs = asked.n_ctx, asked.n_ctx**2 / 2 * 2 * 4 * 16  # 2 layers, 4 heads of 16
    prompt = 2 * asked.n_weights * n / 1e12 + 4 * pairs / 1e12
    assert speed["prompt_seconds"] == pytest.approx(prompt)


def panels(n_rows: int, n_cols: int) -> int:
    """Bytes of a thin matrix: 16 scales, and 2.5 bytes for each number of 16 rows."""
    return -(-n_rows // 16) * (16 * 4 + -(-n_cols // 2) * 2 * 16 * 5 // 2)


def test_adapters_and_drafts_are_counted(model: Model, tmp_path: Path) -> None:
    """Adapters in panels of 16 rows, together of twice the rank; of a draft, the weights and what
    the context that guesses allocates."""
    case = next(one for one in tiny_cases.CASES if one.name == model.path.stem)
    path = tmp_path / "lora.gguf"
    shapes = projections(case)
    write_adapter(path, case.architecture, random_pairs(shapes, 3))
    n_bytes = sum(panels(6, columns) + panels(rows, 6) for rows, columns in shapes.values())
    plain = estimate(model.file, N, ("q8_0", "q8_0"), ATTENDS["full"]())
    draft = DraftRequest.of({"draft": str(model.path)})
    told = with_beside(plain, model.file, adapter_files([f"{path}:0.5", path]), draft)
    assert told.adapter_bytes == n_bytes
    drafting = DraftModel(model)
    with model.context(N) as context:
        drafting.prepare(context)
        assert drafting._guessing is not None
        guessing = drafting._guessing.context
        guessing.prefill([3 + i % 90 for i in range(guessing.n_ctx)])
        states = 0 if guessing.store.states is None else guessing.store.states.n_bytes
        used = guessing.n_bytes + states + plain.weights.resident
        assert used <= told.draft_bytes <= used + plain.buffer_bytes
    assert told.memory_bytes == plain.memory_bytes + told.adapter_bytes + told.draft_bytes
    memory = round(plain.memory_bytes / 0.9) + 4096  # buffers are counted to some bytes
    fits = [
        advice(model.file, one, ATTENDS["full"](), memory, 0)[0].partition(", but")[0] == "it fits"
        for one in (plain, told)
    ]
    assert fits == [True, False]


def test_what_kvarn_cannot_tell_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    with open_gguf(tiny_path) as file, pytest.raises(KvarnError, match="magicpig takes"):
        estimate(file, 1024, ("f16", "f16"), ATTENDS["magicpig"]())
    data = tiny_path.read_bytes()
    other = tmp_path / "other.gguf"
    other.write_bytes(data.replace(b"llama", b"lAmma"))
    with (
        open_gguf(other) as file,
        pytest.raises(ModelError, match=r"general\.architecture is 'lAmma'"),
    ):
        estimate(file, 1024, ("f16", "f16"), ATTENDS["full"]())
