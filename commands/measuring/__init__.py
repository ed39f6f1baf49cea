"""Commands about how fast a model is, how well it predicts and recalls, and what it reads."""
