"""kvbraid: exact reusable prefixes for hybrid-attention language models."""

from kvbraid._native import __version__

__all__ = ["__version__"]
