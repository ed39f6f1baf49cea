"""What a rehearsal of a text encoder has used is all that its texts need."""

import subprocess
import sys
from pathlib import Path

import pytest

from ...models.tiny_text_encoders import TinyEncoder, write

PROGRAM = """
import sys
from pathlib import Path

import kvarn
from kvarn.jit.kernel_cache import Counts
from kvarn.runtime.embedding.rehearsal import TextRehearsal

path = Path(sys.argv[1])
TextRehearsal(path)()
rehearsed = {name for name in Counts.names if name.endswith(".code")}
embedder = kvarn.load_embedder(path)
texts = ["the mill stood by the river .", "bread", "a man eats bread"] * 9
for n in (1, 2, 3, 4, 5, len(texts)):
    if embedder.pooling == "rank":
        embedder.rank("who eats ?", texts[:n])
    else:
        embedder.embed(texts[:n])
print(sum(name.startswith("text_kernel") for name in rehearsed))
print(*(name for name in Counts.names - rehearsed if name.endswith(".code")))
"""


@pytest.mark.parametrize(
    "case",
    [
        TinyEncoder(),
        TinyEncoder(labels=1, pooling=4),
        TinyEncoder("nomic-bert-moe", n_layers=4, n_experts=5),
    ],
    ids=lambda case: f"{case.architecture}, {case.labels} labels",
)
def test_texts_need_what_was_rehearsed(case: TinyEncoder, tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(write(tmp_path / "tiny.gguf", case))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1"], done.stderr
