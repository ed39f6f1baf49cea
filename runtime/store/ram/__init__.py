"""K and V in memory: where a context keeps all tokens, and the slots of one that evicts."""
