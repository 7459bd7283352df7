"""The whole error tree of kvbraid.

KvbraidError
├── InvalidValueError   a value outside what the operation accepts (also a ValueError)
│   └── TopologyError   groups or flags that no engine can have
├── UnknownError        a pod, model or group that was never registered (also a LookupError)
├── TooLargeError       larger than a configured limit
├── CaptureError        a capture directory that cannot be read
├── TraceError          a trace file that cannot be read
├── UnsupportedError    a feature or version of an engine that an integration does not have
└── ServiceError        a running server refused a request or could not be reached

Every message shows the offending value, says what was expected and, where there is one, names
the remedy. Broken invariants are asserts, not members of this tree.
"""


class KvbraidError(Exception):
    """Anything that kvbraid refuses."""


class InvalidValueError(KvbraidError, ValueError):
    """A value outside what the operation accepts."""


class TopologyError(InvalidValueError):
    """Groups or flags that no engine can have."""


class UnknownError(KvbraidError, LookupError):
    """A pod, model or group that was never registered."""


class TooLargeError(KvbraidError):
    """Larger than a configured limit."""


class CaptureError(KvbraidError):
    """A capture directory that cannot be read."""


class TraceError(KvbraidError):
    """A trace file that cannot be read."""


class UnsupportedError(KvbraidError):
    """A feature or version of an engine that an integration does not have."""


class ServiceError(KvbraidError):
    """A running server refused a request or could not be reached."""
