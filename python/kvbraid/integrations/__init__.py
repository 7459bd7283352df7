"""Engines that can run on our parts, one package each: the only places that import an engine."""
