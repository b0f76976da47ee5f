"""HTTP requests that wait for as long as a busy machine needs."""

from __future__ import annotations

from functools import partial

import httpx

SECONDS = 900.0

get = partial(httpx.get, timeout=SECONDS)
post = partial(httpx.post, timeout=SECONDS)
