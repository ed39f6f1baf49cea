"""Compiles and renders a template in a process of its own, which has limits.

`process` starts that process and talks to it on behalf of `renderer`. In it, `worker` runs Jinja
with the checks of `environment`. `checks`, `environment`, `limits` and `worker` are imported there
without the rest of kvarn.
"""
