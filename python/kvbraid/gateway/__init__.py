"""The embedded gateway: it chooses a pod for each request of the OpenAI API, and forwards bytes.

In reading order:

    prompts    what a request asks for, as far as a choice depends on it
"""

from kvbraid.extras import require_serve

require_serve(__name__)
