"""Exact top-k: the products with all stored keys, and the largest of them."""
