"""The shared clones. `clones` is the door; `blobs` and `trees` read what it opens; `urls` and `refs` are names."""
