"""Products with many tokens (`matmul`): rows are unpacked into `panels` and multiplied in register
`tiles`, 32 columns at a time (`units`)."""
