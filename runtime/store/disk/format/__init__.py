"""The files of a pack, byte by byte: a module for each, with its drawing, its reader and writer."""
