"""The server's page: chat, documents, and what an answer attended to.

files.py        `/` and the page's files under /static/, which need no key
page.html       the page; page.css: its looks; page.js: what its parts do together
api.js          requests to this server, and their events
answer.js       one answer: its text, its speed
documents.js    documents: open, read, choose
lens.js         the passages that an answer attended to
vendor/         Pico CSS 2.1.1, marked 18.2.1 and DOMPurify 3.4.18, with their licences
"""

from .files import OPERATIONS

__all__ = ["OPERATIONS"]
