"""Tell: one run per watch. `tell` decides, `run` sends and records, `webhooks` is the HTTP client."""
