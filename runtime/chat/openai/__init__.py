"""OpenAI's requests in kvarn's terms, for servers and for `Completions`.

    errors.py       `RequestError`: what is wrong, by its field
    messages.py     messages as templates take them
    tools.py        tools, the choice among them, and what reads an answer
    fields.py       sampling, and the form of an answer
    completions.py  `Completions`: answers over one context, without a server

Types of requests are TypedDicts: servers check bodies against them, programs give dictionaries.
Nothing is imported here, and only completions.py imports NumPy; nothing imports msgspec.
"""
