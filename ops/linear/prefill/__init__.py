"""Matrices times many vectors (`matmul`): weights unpacked into `panels`, multiplied in register
`tiles`, 32 columns at a time (`units`)."""
