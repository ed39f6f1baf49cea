"""What an answer read of its prompt: choices counted, and the passages and places they fell on.

`passages` has what messages carry and imports no NumPy; `choices` watches a context.
"""
