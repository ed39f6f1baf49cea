"""What the models read in training: books, notes, questions to recall, in rows of tokens."""
