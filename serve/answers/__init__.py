"""What all APIs share: a request as the engine takes it, and its answer as events.

fields.py    fields of requests that mean the same in all APIs: sampling, reading, constraints
messages.py  conversations in the engine's form
tools.py     tools and which of them must be called
asking.py    `Ask`: one answer that is wanted
events.py    what an answer is made of
answering.py `Ask`s → events, while they are generated
collecting.py events → whole answers
"""
