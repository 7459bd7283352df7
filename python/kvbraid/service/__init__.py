"""All of kvbraid's I/O: sockets, asyncio and clocks live here and in the layers above.

It comes with the extra `serve`.
"""

from kvbraid.extras import require_serve

require_serve(__name__)
