"""What choosing tokens takes, for single tokens and for the rows of a prompt."""
