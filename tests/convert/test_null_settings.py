"""What config.json spells as null, true or an empty list is refused in these words."""

import re

import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf.files.jsons import parse_json

from .configurations import common
from .test_keys import keys_of

REFUSED = {
    "rope parameters: factor is null, expected a number": common(
        "LlamaForCausalLM", rope_scaling={"rope_type": "yarn", "factor": None}
    ),
    "rope_theta is null, expected a number": common("LlamaForCausalLM", rope_theta=None),
    "rms_norm_eps is null, expected a number": common("LlamaForCausalLM", rms_norm_eps=None),
    "rope_type is null, expected default": common(
        "LlamaForCausalLM", rope_scaling={"rope_type": None, "factor": 2.0}
    ),
    "num_attention_heads is true, expected": common("LlamaForCausalLM", num_attention_heads=True),
    "no_rope_layers is .null, true.:": common("SmolLM3ForCausalLM", no_rope_layers=[None, True]),
    "the activation is null, expected silu": common("LlamaForCausalLM", hidden_act=None),
    "long_factor is missing, expected 16 numbers": common(
        "Phi3ForCausalLM", rope_scaling={"type": "su"}
    ),
    "architectures is null, expected one of": {"architectures": None, "model_type": "llama"},
    "architectures is empty, expected one of": {"architectures": [], "model_type": "llama"},
    "architectures is missing, expected one of": {"model_type": "llama"},
    "the architecture 'X' is unknown": {"architectures": ["X"], "model_type": "llama"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_values_are_named_as_json_spells_them(message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        keys_of(REFUSED[message])


def test_what_is_no_object_is_shown_as_it_stands() -> None:
    for text, shown in ((b"null", "null"), (b"[true]", "[true]")):
        with pytest.raises(ConvertError, match=f"found {re.escape(shown)}$"):
            parse_json(text, "config.json")
