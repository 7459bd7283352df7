"""Pods of Kubernetes: what a table of fleet.toml finds is registered, drained and removed.

In reading order:

    objects          what all objects have in common, and what is found in one: endpoints
    endpoint_slices  a slice to its endpoints
    labelled_pods    a pod to its endpoints
    inference_pool   a pool to the labels and ports of its pods
    api_server       lists and watches, over HTTP
    sources          what a table asks for
    following        from endpoints to registered pods
"""

from kvbraid.service.kubernetes.following import following_tables as following_tables

__all__ = ["following_tables"]
