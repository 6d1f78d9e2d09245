"""Speed and memory, as ratios against a named reference in the same run."""
