"""Journeys through all of Docora: a real server, real git, real processes."""
