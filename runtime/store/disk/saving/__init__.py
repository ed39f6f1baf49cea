"""What a commit writes: segments, the open one's tokens, checkpoints of windows and of states."""
