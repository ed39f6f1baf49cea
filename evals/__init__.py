"""Measurements of models as a whole: tasks, what is asked and how answers are scored."""
