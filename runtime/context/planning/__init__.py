"""From what a user asks of a context to all that it is, before it is opened."""
