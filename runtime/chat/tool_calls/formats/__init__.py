"""How models write calls of tools: one file a format, chosen by the chat template's source.

A format reads an answer (`read`, after one of its markers) and says how a call is written
(`rules`), for constraints.
"""
