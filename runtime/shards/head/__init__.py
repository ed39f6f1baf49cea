"""The process that runs the model: it asks shards for their part of each layer, and merges.

`binding` binds a method to shards that fit; `full` and `choice` attend for a token, and `local` to
the tokens held here; `shares` guesses how many best tokens each shard should name.
"""
