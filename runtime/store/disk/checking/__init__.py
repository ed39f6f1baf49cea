"""Whether a pack holds what was written to it, and only numbers that kernels can take."""
