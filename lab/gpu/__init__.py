"""What a GPU shows of kvarn. Nothing here is imported without one but `report`.

report.py     checks and benches in one file: `make gpu-check`
profile.py    a prompt's and a token's kernels, by time
choosing.py   what choosing takes of a token
products.py   products of one token: tiles, and integers beside floats
integers.py   the kernels of those by integers
"""
