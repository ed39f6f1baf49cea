"""Commands about this machine: its kernels, what fits on it, and its shell."""
