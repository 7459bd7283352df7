"""Types of the native core; checked against the built module by stubtest."""

__version__: str
