"""Plans a context: turns a user's request into every property of it, before it is opened."""
