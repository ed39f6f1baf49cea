"""kvarn: a GGUF runtime for contexts that do not fit in memory."""
