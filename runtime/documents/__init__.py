"""Files become texts here: plain texts and Markdown as they are, PDF, Word, EPUB and HTML through
libraries of the extra `docs`, which are imported for such a file alone. Imports no NumPy."""

from .files import Document as Document
from .files import documents_in as documents_in
from .files import files_in as files_in
from .files import joined as joined
from .kinds import DocumentRefused as DocumentRefused
from .kinds import is_document as is_document
from .kinds import read_document as read_document
from .kinds import text_of as text_of
