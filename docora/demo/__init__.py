"""The supporting cast of the demo and of the tests: a real git host and a real receiver, on 127.0.0.1.

Nothing here is imported by the service itself.
"""
