"""What requests mean: their prompts as tokens, and what they ask of contexts and packs."""
