"""The laboratory: what measures kvarn, compares methods and trains its models; not installed.

From a checkout: `python -m lab.results plan`. It imports `kvarn`; nothing in `kvarn` imports it.
"""
