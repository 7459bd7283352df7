"""What a fleet does, without a model: simulated engines, recorded captures, traces of prompts."""
