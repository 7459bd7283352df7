"""The token ids of prompts, as the engine will have them: bodies in, ids or a reason out.

What an engine computes for a body is decided by its model's files, which are read once. Where the
ids cannot be known, the request is not refused: it is sent on by load alone, and counted.

>>> import asyncio
>>> reader = BodyReader(Tokenizers.of({}))
>>> body = b'{"model": "m", "prompt": [1, 2, 3]}'
>>> prompt = asyncio.run(reader.read("/v1/completions", {}, body))
>>> prompt.model, list(prompt.token_ids)
('m', [1, 2, 3])
>>> asyncio.run(reader.read("/v1/completions", {}, b'{"prompt": "text"}')).why_no_tokens
'no_tokenizer'

In reading order:

    bodies       the fields of a body that decide what an engine computes
    messages     messages and tools of a chat, as an engine hands them to its template
    content      what a template takes as the content of a message
    templates    a chat template in a sandbox, with bounds
    chats        a chat to the text that the engine computes
    encoding     text to ids, by the fast package where it agrees with the other
    model_files  what a model's own files say of all this
    engine       the ids of prompts from an engine that is asked
    registry     the ids of prompts by model, on the event loop or on threads
    reader       bodies to prompts; each reason for unknown tokens is counted
"""

from kvbraid.extras import require

require("route", __name__)

from kvbraid.gateway.tokens.engine import AskedEngine  # noqa: E402 - as above
from kvbraid.gateway.tokens.model_files import TokenizerFiles  # noqa: E402
from kvbraid.gateway.tokens.reader import BodyReader  # noqa: E402
from kvbraid.gateway.tokens.registry import TokenizerOptions, Tokenizers  # noqa: E402

__all__ = ["AskedEngine", "BodyReader", "TokenizerFiles", "TokenizerOptions", "Tokenizers"]
