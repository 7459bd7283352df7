"""Simulated engines, workloads and the demo: what a fleet does, without a model."""
