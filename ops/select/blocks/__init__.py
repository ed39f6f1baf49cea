"""The second level of sketches: blocks of 32 similar keys, which a query rules out by their mean.

`order` puts the 1,024 tokens of a segment into blocks, `layout` draws what is stored of them and
`build` writes it, `scan` searches them; `api` has the wrappers.
"""
