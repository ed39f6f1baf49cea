"""HTTP beneath the APIs: errors and their shapes, bodies, streams, who may ask, the log.

errors.py    one error of a request, in each API's shape
encoding.py  answers as JSON, events and lines
bodies.py    a request's JSON: limits, types, the field's path in errors
forms.py     multipart/form-data
streams.py   answers that are sent while they are made; what ends when a client is gone
guard.py     around all paths: hosts, origins, keys, overload, stalled readers
passing.py   what `kvarn route` passes on
log.py       a line per request, in words or JSON, that holds no prompt and no key
"""
