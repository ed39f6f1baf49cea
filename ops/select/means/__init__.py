"""Attention to the tokens that were not chosen, by the means of their blocks (`topk --tail means`).

`layout` draws what is stored of the blocks of similar keys and `build` writes it; `attend` merges
them with attention to the chosen tokens, `rows` with that of many rows of a prompt; `api` has the
wrappers.
"""
