"""Nouns: apps, repositories, watches, their clones on disk, the lock. Knows nothing of snapshots."""
