"""What makes models and what belongs to them: pulled from a hub, converted from Hugging Face's
layout to GGUF, quantised, given learned hash encoders.

Stands on `runtime/` and is imported by no other room; libraries it needs are imported when used.
"""
