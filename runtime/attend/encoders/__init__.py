"""What computes signatures of queries and keys (`networks`), and the files it is kept in
(`sidecar`)."""

from .networks import Dense, Encoder, Learned, LearnedLayer, SimHash

__all__ = ["Dense", "Encoder", "Learned", "LearnedLayer", "SimHash"]
