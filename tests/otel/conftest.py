"""What Starlette's test client warns of when it is imported is not ours: see tests/service."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tests.service.in_process  # noqa: F401  For whoever imports it next.
