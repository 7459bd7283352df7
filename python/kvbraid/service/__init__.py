"""All of kvbraid's I/O: sockets, asyncio and clocks live here and in the layers above."""
