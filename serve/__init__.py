"""`kvarn serve` over HTTP: OpenAI's, Anthropic's and Ollama's APIs, and a page.

This process imports no kernels; all that a model does happens in the engine process
(`runtime/serving`).
"""
