"""The commands of the `kvarn` program, one file each.

Each module has `add(subparsers)`, which declares its options, and `run(options) -> int`.
"""
