"""The default model that ships with kvarn, and the scripts that train it (these need torch)."""
