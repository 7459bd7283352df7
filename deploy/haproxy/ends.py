"""Tells kvbraid of each request that HAProxy has ended: log lines in, POST /v1/picked out.

    python3 ends.py [LISTEN_PORT [KVBRAID_HOST:PORT]]

Lines come as datagrams: one that is lost ends its booking by time (`router.hold_s`). It needs
nothing but Python, and the token of kvbraid, if it has one, in KVBRAID_TOKEN.
"""

import http.client
import json
import os
import socket
import sys

BEFORE_AN_ANSWER = frozenset("RQCHT")
"""The second letter of HAProxy's termination state, if no byte of an answer had come."""


def report(line: str) -> dict[str, str] | None:
    """Return what kvbraid is told of a line `STATUS NAME STATE`; None if it has chosen no pod."""
    status, name, state = line.split()
    if status != "200":
        return None
    return {"pick": name, "event": "failed" if state[1] in BEFORE_AN_ANSWER else "end"}


def tell(address: str, body: dict[str, str]) -> None:
    """Post one report."""
    headers = {"host": "localhost"}
    if token := os.environ.get("KVBRAID_TOKEN"):
        headers["authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("POST", "/v1/picked", json.dumps(body), headers)
        connection.getresponse().read()
    finally:
        connection.close()


def main(port: str = "8091", address: str = "127.0.0.1:8090") -> None:
    """Serve until it is killed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lines:
        lines.bind(("127.0.0.1", int(port)))
        sys.stdout.write(f"hears of ends on port {port}\n")
        sys.stdout.flush()
        while True:
            try:
                body = report(lines.recv(1024).decode("ascii"))
                if body is not None:
                    tell(address, body)
            except (OSError, ValueError, IndexError, http.client.HTTPException) as error:
                sys.stderr.write(f"a report was lost: {error}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
