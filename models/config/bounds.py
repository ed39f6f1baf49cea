"""Bounds that no real model reaches: a hostile file must not make kvarn allocate absurd memory."""

MAX_LAYERS = 512  # llama.cpp's LLAMA_MAX_LAYERS
MAX_HEADS = 4096
MAX_HEAD_DIM = 256  # of the kernels that choose tokens
MAX_WHOLE_HEAD_DIM = 512  # of those that attend to every token
MAX_ROW = 1024  # of a row that is key and value at once
MAX_EMBD = 1 << 17
MAX_FF = 1 << 20
MAX_VOCAB = 1 << 19  # twice the largest published one
MAX_CONTEXT = (1 << 31) - 1
