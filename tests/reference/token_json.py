"""The obvious way to find the token ids of a JSON request: parse all of it."""

import json


def token_ids(body: bytes) -> list[int] | None:
    """Return the ids of an object with exactly one `token_ids`, a list of uint32; else None."""
    seen = 0

    def count(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal seen
        seen = sum(key == "token_ids" for key, _ in pairs)  # The outermost object comes last.
        return dict(pairs)

    try:
        parsed = json.loads(body, object_pairs_hook=count)
    except ValueError:
        return None
    tokens = parsed.get("token_ids") if isinstance(parsed, dict) else None
    if seen != 1 or not isinstance(tokens, list):
        return None
    fits = all(type(token) is int and 0 <= token < 1 << 32 for token in tokens)
    return tokens if fits else None
