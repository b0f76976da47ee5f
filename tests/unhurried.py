"""HTTP requests that wait for as long as a busy machine needs."""

from __future__ import annotations

import ssl
from functools import partial

import httpx

SECONDS = 900.0
# Nothing here is encrypted. Else httpx would read the certificates of all authorities for every
# request, which takes 60 ms.
NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

get = partial(httpx.get, timeout=SECONDS, verify=NOBODY)
post = partial(httpx.post, timeout=SECONDS, verify=NOBODY)
put = partial(httpx.put, timeout=SECONDS, verify=NOBODY)
client = partial(httpx.Client, timeout=SECONDS, verify=NOBODY)
