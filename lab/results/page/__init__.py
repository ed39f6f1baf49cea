"""lab/RESULTS.md and its plots: tables, verdicts, reasons, all from what was measured.

`report` puts the page together of `summary`, `claims`, `reasons` and the sections' `tables`,
`derived` figures and `plots`; `verdicts` says what a measurement means for a claim.
"""
