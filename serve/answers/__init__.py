"""What all APIs share: a request as the engine takes it, and its answer as events.

fields.py      fields of requests that mean the same in all APIs: sampling, reading, constraints
inputs.py      texts or ids, one or several
asking.py      `Ask`: one answer that is wanted
events.py      what an answer is made of
answering.py   `Ask`s → events, while they are generated
parsing.py     what reads an answer, and what it must match
collecting.py  events → whole answers
embedding.py   texts → vectors
"""
