"""Makes models and what belongs to them: learned hash encoders, files that hold both."""
