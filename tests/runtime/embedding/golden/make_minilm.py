"""Writes minilm.json: ids by tokenizers and vectors by sentence-transformers, of some texts.

    python make_minilm.py FOLDER

FOLDER: of all-MiniLM-L6-v2, as the hub has it. Needs sentence-transformers.
"""

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

TEXTS = [
    "A man is eating food.",
    "The mill stood by the river, and nobody had worked in it for thirty years.",
    "Ünïcödé naïve café — “quotes” … 100% $5.00 #tag",
    "我想在apple工作1314151天～",
    "don't you're it's e-mail: a.b@c.org; http://x.y/z?q=1&r=2",
    "word " * 400,
]

if __name__ == "__main__":
    model = SentenceTransformer(sys.argv[1], device="cpu")
    model.max_seq_length = 512
    library = model.tokenizer._tokenizer
    library.no_padding()
    library.no_truncation()
    ids = [library.encode(text).ids for text in TEXTS]
    vectors = model.encode(TEXTS, normalize_embeddings=True)
    rounded = [[round(float(x), 6) for x in vector] for vector in vectors]
    found = {"texts": TEXTS, "ids": ids, "vectors": rounded}
    Path(__file__).with_name("minilm.json").write_text(json.dumps(found) + "\n")
