"""The hall: settings, urls, logging and the processes. No domain logic."""

__version__ = "0.1.0"
