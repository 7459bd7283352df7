"""Captures: the recorded lives of real engines, read from disk and replayed."""
