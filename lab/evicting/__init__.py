"""What methods that evict lose of the next tokens of real texts, with one reading for many methods.

`python -m lab.evicting` gives the figures of `kvarn perplexity --decode T --keep …` for less time.
"""
