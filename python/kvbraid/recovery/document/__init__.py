"""A decision as JSON.

In reading order: `reading` has the schema, `checks` what no type says; `document` reads
and writes.
"""
