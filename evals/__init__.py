"""Measures models as a whole: tasks with questions, and the scores of answers."""
