"""What kvarn asks of the operating system: files opened, written and removed safely, folders whose
content may be trusted, text from outside made fit for a terminal. Imports no other room.
"""
