"""What `kvarn serve` does with a model: an engine process that owns model, contexts and packs.

    protocol.py     the messages between the HTTP process and the engine process

Nothing here is imported by the HTTP process but `protocol` and what starts the engine.
"""
