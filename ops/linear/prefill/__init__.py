"""Matrices times many vectors (`matmul`): weights unpacked into `panels`, multiplied in register
`tiles`."""
