"""`make results`: what the papers claim, measured on models that can tell, into lab/RESULTS.md.

`plan.json` says what is measured and which claim each measurement decides.
"""
