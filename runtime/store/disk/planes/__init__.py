"""Full segments in memory: mapped from a pack's files or read from them, shared by contexts."""
