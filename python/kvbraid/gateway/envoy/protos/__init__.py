"""Messages of Envoy and gRPC: only the fields that are used, with their published numbers.

`make protos` writes the modules from the files beside them, and a test compares all numbers with
those that the authors of gRPC publish. The packages have names of our own, so the same messages of
others can be loaded beside them. In reading order:

    ext_proc_pb2    an external processor: what Envoy asks, and what it is answered
    access_log_pb2  the access log: what Envoy says of a request at its end
    health_pb2      the health check of gRPC
"""
