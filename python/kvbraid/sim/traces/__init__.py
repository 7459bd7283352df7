"""Traces: which prefixes prompts share, read from files and played against one engine's cache."""
