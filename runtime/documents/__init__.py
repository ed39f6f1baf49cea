"""Files become texts here: plain texts and Markdown as they are, PDF, Word, EPUB and HTML through
libraries of the extra `docs`, which are imported for such a file alone. Imports no NumPy."""

from .files import Document, documents_in, joined
from .kinds import DocumentRefused, read_document, text_of

__all__ = ["Document", "DocumentRefused", "documents_in", "joined", "read_document", "text_of"]
