"""kvarn beside llama.cpp, on the same files, in the same run."""
