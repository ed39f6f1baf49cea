"""What commands write and hear while they work: messages, progress bars, tables, Ctrl-C."""
