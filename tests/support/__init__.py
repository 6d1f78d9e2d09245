"""The cast of the tests: servers, casts, a worker, a browser."""
