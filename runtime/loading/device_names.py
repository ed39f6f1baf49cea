"""What a model can run on, by name; apart, as command lines are parsed without what computes."""

DEVICES = ("cpu", "cuda")
KV_ON = ("auto", "gpu", "host")
"""Where K and V can be, see `load`."""
