"""lab/RESULTS.md, results/TABLES.md and their plots: verdicts, tables, reasons, as measured.

`report` puts the page together of `summary`, `claims`, `reasons` and the sections' `tables`,
`derived` figures and `plots`; `verdicts` says what a measurement means for a claim.
"""
