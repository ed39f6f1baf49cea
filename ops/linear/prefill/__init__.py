"""Products with many tokens (`matmul`): unpacks rows into `panels` and multiplies them in register
`tiles`, 32 columns at a time (`units`)."""
