"""/v1/responses: OpenAI's newer form of a conversation, without what a server would have to keep.

types.py     the body of a request
requests.py  items → the engine's terms
tools.py     functions, and namespaces of them
items.py     events → the items of an answer, and the events of its stream
answer.py    the path itself
"""

from .answer import responses as responses
from .types import ResponsesRequest as ResponsesRequest
