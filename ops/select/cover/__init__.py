"""The fewest of the listed tokens that hold a share of each query head's softmax."""

from .api import SAMPLE, CoverScratch, cover, draw_sample

__all__ = ["SAMPLE", "CoverScratch", "cover", "draw_sample"]
