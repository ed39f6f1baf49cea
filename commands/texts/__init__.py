"""Commands about what is made of texts: packs, vectors, scores, tokens."""
