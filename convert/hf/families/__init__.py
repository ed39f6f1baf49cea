"""What families of models have that others have not, as llama.cpp's converter writes it: experts,
delta nets, scans, short convolutions, weights that are packed already.
"""
