"""Captures: the recorded lives of real engines, read from disk and replayed.

In reading order:

    read    a capture from disk
    replay  predicts each request's reuse, and compares
"""
