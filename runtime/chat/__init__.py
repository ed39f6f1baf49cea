"""Conversations: chat templates rendered in a sandbox, over a context that reads only new messages.

    template.py, sandbox/   `ChatTemplate` turns messages into a prompt; quoting.py, lenient.py
    conversation.py         `Conversation` reads it into a context and answers; session.py keeps it
    tool_calls/             what an answer says; replies.py: OpenAI's forms of it
    openai/                 what OpenAI's requests say; `Completions` answers them over a context

Nothing is imported here: the HTTP process reads answers without NumPy.
"""
