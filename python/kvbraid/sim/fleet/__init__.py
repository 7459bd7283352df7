"""Simulated engines that publish to a real server, and the demo that compares the two."""
