"""Measurements of kvarn as a whole: against its peers, on tasks, on texts."""
