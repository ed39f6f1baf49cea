"""What `kvarn serve` does with a model: an engine process that owns model, contexts and packs.

client.py         starts the engine and speaks with it: all that the HTTP process imports, with
calls.py          the requests in flight,
protocol.py       the messages between both processes (prompt.py: what they say of prompts),
frames.py         how they stand on the socket, and
flags.py          what cancels and pauses requests, in memory that both share
engine.py         the engine process: receives messages
requests/         what they mean: tokens, options, contexts, passages
scheduler.py      which request it works on next
tasks.py          what it does for a request, step by step (drafts.py: what guesses its tokens)
reading_tasks.py  the same for packs and vectors; text_encoders.py: the engine of a text encoder
refusal.py        how a request is refused
library/          what was read, on disk and in memory
"""
