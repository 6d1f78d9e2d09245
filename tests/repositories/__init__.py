"""The nouns: the lock and what it keeps apart."""
