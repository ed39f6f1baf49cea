"""Exact top-k: the products with all stored keys, and the largest of them."""

from .api import ExactScratch, largest, products

__all__ = ["ExactScratch", "largest", "products"]
