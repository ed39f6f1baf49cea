"""What compiles and renders a template, in a process of its own that has limits.

`renderer` asks, `process` starts that process and talks with it; `worker` runs in it, where
`environment` is Jinja with the checks that a template meets first. What runs there imports this
folder without the rest of kvarn: `checks`, `environment`, `limits`, `worker`.
"""
