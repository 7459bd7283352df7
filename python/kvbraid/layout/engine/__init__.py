"""Memory that vLLM 0.32 has laid out, described as a plan; no engine is imported.

In reading order:

views     what the engine hands to a connector for one layer
specs     what its specs say of a layer's pages
layers    where each layer's pages are, from both
describe  the plan of all layers
"""
