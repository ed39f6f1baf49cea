"""What `kvarn serve` does with a model: an engine process that owns model, contexts and packs.

client.py       starts the engine and speaks with it: all that the HTTP process imports, with
protocol.py     the messages between both processes,
frames.py       how they stand on the socket, and
flags.py        what cancels and pauses requests, in memory that both share
engine.py       the engine process: receives messages
preparing.py    from messages to tokens and options
scheduler.py    which request it works on next
tasks.py        what it does for a request, step by step
lens.py         which passages of its prompt an answer attended to,
contents.py     of those that people wrote, apart from what the chat template writes
contexts.py     the contexts of requests
"""
