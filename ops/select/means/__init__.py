"""Attention to the tokens that were not chosen, by the means of their blocks (`topk --tail means`).

`order` puts the 1,024 tokens of a segment into blocks of 32 similar keys, `layout` draws what is
stored of them and `build` writes it; `attend` merges them with attention to the chosen tokens,
`rows` with that of many rows of a prompt; `api` has the wrappers.
"""
