"""What kvarn asks of the operating system: to open, write and remove files safely, to check who can
write to a folder, to print text from outside. Imports no other room.
"""
