"""The process that runs the model: `binding` binds a method to shards that fit, `full` and `choice`
attend for a token, `local` to the tokens held here, `shares` guesses what to ask of each shard.
"""
