"""Fleets and caches without a model: simulated engines, recorded captures, traces of prompts."""
