"""Makes models: pulls them from a hub, converts Hugging Face's layout to GGUF, quantises, and
learns hash encoders.

Imports the libraries that it needs when they are used.
"""
