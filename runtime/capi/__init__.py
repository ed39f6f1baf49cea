"""libkvarn: a shared library for programs in C and what can call C.

`python -m kvarn.runtime.capi --out DIR` builds it (`build`). In a program that uses it, `library.c`
and `process.c` are what it calls, and `entry` is what these call.
"""
