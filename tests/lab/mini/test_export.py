"""An exported model carries everything a reader needs and computes what torch computes."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is only needed to train: pip install torch")

from lab.mini.export import NAMES, write_gguf  # noqa: E402
from lab.mini.model import Mini, MiniConfig  # noqa: E402
from lab.mini.texts.data import new_tokenizer  # noqa: E402

TEXT = (
    "The miller's wife said: \"I don't know 1234 of them!\"\nIt was cold\tthere.  So it was.\n" * 8
)
CONFIG = MiniConfig(
    n_vocab=300, n_layers=4, n_embd=64, n_heads=2, n_kv_heads=1, head_dim=32, n_ff=96, window=8
)
MODELS = {"cohere2": gguf.MODEL_ARCH.COHERE2, "llama": gguf.MODEL_ARCH.LLAMA}
OPTIONAL = (
    gguf.MODEL_TENSOR.OUTPUT,
    gguf.MODEL_TENSOR.ROPE_FREQS,
    gguf.MODEL_TENSOR.ATTN_ROT_EMBD,
)


@pytest.fixture(scope="module", params=MODELS)
def exported(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, "Mini", "object"]:
    folder = tmp_path_factory.mktemp("mini")
    tokenizer = new_tokenizer([TEXT], CONFIG.n_vocab)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    model = Mini(replace(CONFIG, architecture=request.param))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    write_gguf(folder / "m.gguf", model.config, model.state_dict(), folder / "tokenizer.json")
    return folder / "m.gguf", model, tokenizer


def test_metadata_is_complete(exported) -> None:
    reader = gguf.GGUFReader(exported[0])
    value = {key: field.contents() for key, field in reader.fields.items()}
    architecture = exported[1].config.architecture
    assert value["general.architecture"] == architecture
    assert value["general.name"] == NAMES[value["general.architecture"]]
    assert value["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    expected = {
        "block_count": 4,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_count": 32,
        "rope.scaling.type": "none",
        "vocab_size": 300,
    }
    epsilon = "layer_norm_rms_epsilon"
    if architecture == "cohere2":
        expected |= {"logit_scale": 0.25, "attention.sliding_window": 8}
        epsilon = "layer_norm_epsilon"
    assert {key: value[f"{architecture}.{key}"] for key in expected} == expected
    assert value[f"{architecture}.attention.{epsilon}"] == pytest.approx(1e-5)
    assert value["tokenizer.ggml.model"] == "gpt2"
    assert len(value["tokenizer.ggml.tokens"]) == 300
    assert value["tokenizer.ggml.token_type"][:3] == [3, 3, 1]
    assert value["tokenizer.ggml.tokens"][value["tokenizer.ggml.bos_token_id"]] == "<s>"
    assert value["tokenizer.ggml.tokens"][value["tokenizer.ggml.eos_token_id"]] == "</s>"
    assert value["tokenizer.ggml.add_bos_token"] is True
    # 2 specials and 256 bytes need no merge, every further token exactly one.
    assert len(value["tokenizer.ggml.merges"]) == 300 - 258


def test_tensors_are_those_of_the_architecture(exported) -> None:
    reader = gguf.GGUFReader(exported[0])
    types = {t.name: t.tensor_type for t in reader.tensors}
    names = gguf.MODEL_TENSORS[MODELS[exported[1].config.architecture]]
    parts = [gguf.TENSOR_NAMES[n] for n in names if n not in OPTIONAL]
    parts = [part for part in parts if "exp" not in part and "inp" not in part]
    wanted = {f"{p.format(bid=i)}.weight" for p in parts for i in range(4)}
    assert set(types) == wanted
    for name, kind in types.items():
        assert kind == (
            gguf.GGMLQuantizationType.F32
            if name.endswith("norm.weight")
            else gguf.GGMLQuantizationType.Q8_0
        )


def test_llama_cpp_reads_the_same_tokens_and_logits(exported) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="the oracle, llama-cpp-python, is absent")
    path, model, tokenizer = exported
    llama = llama_cpp.Llama(str(path), n_ctx=128, logits_all=True, n_threads=1, verbose=False)
    text = TEXT[:120]
    ids = tokenizer.encode(text).ids
    assert llama.tokenize(text.encode(), add_bos=False) == ids
    assert llama.tokenize(b"1234", add_bos=True)[0] == llama.token_bos() == 0
    ids = ids[:40]
    llama.eval(ids)
    found = np.array(llama.scores[: len(ids)])
    reference = Mini(model.config)
    reader = gguf.GGUFReader(path)
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    if model.config.architecture == "llama":
        stored["output_norm.weight"] = stored["output_norm.weight"] / CONFIG.logit_scale
    reference.load_state_dict({name: torch.tensor(data) for name, data in stored.items()})
    with torch.no_grad():
        exact = reference(torch.tensor([ids]))[0].numpy()
        unquantised = model(torch.tensor([ids]))[0].numpy()
    # llama.cpp rounds activations to 8 bits too, so it may be as far from the dequantised model as
    # that is from the original one; positions beyond the window of 8 show that windows agree.
    noise = np.sqrt(np.mean((exact - unquantised) ** 2))
    assert np.sqrt(np.mean((found - exact) ** 2)) < 2 * noise
    assert noise < 0.05 * exact.std()


def test_config_refuses_what_llama_cpp_cannot_load() -> None:
    with pytest.raises(ValueError, match="n_heads"):
        MiniConfig(n_embd=192, n_heads=4, head_dim=64)
