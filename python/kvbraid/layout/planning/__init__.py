"""From groups of layers to a plan. In reading order:

layers       what a plan is made from: layers and groups
geometry     how a kernel indexes a page; `probe` asks a backend
cross_layer  whether blocks may run across layers
slots        which layers lie over each other, and which slots share a buffer
buffers      where each page starts
views        what a kernel sees of each page
planner      all of these steps
from_config  from a model's config.json to its plan
waste        what a plan costs
"""
