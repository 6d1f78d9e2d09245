"""Verbs: look (take a snapshot), compare (what changed for this app), tell (deliver)."""
