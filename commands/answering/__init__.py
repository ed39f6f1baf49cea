"""Commands about what a model answers: texts, conversations, programs over HTTP."""
