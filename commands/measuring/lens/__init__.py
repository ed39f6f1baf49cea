"""`kvarn lens`: a page of what recorded selections read of their text."""
