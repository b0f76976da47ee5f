"""Pages and their files, which are read once, at the start: no part of a URL reaches the disk."""

from __future__ import annotations

import mimetypes
from html import escape
from importlib.resources import files

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

# A page without a script and without files, which need a token.
_PLAIN_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1.2rem;"
    "color-scheme:light dark}input,button{font:inherit;padding:.4rem .7rem}input{width:100%;"
    "box-sizing:border-box;margin:.3rem 0 .8rem}"
)
_ASK = (
    '<form action="/" method="get"><label>Token<input name="token" autocomplete="off" '
    "autofocus required></label><button>Open</button></form>"
)


def add_pages(app: FastAPI, pages: dict[str, str], *packages: str) -> None:
    """Serve the pages, by their paths, and the files of these packages' folders `static`."""
    static = {
        file.name: file.read_bytes()
        for package in packages
        for file in (files(package) / "static").iterdir()
    }
    named = {**pages, "/favicon.ico": "icon.svg"}

    @app.get("/static/{name:path}", include_in_schema=False)
    async def page(request: Request, name: str = "") -> Response:
        name = name or named[request.url.path]
        if name not in static:
            raise HTTPException(404, "no such file")
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        headers = {"cache-control": "no-cache"}
        return Response(static[name], media_type=kind or "text/plain", headers=headers)

    for path in named:
        app.get(path, include_in_schema=False)(page)


def refusal_page(status: int, message: str) -> Response:
    """A refusal for a person at a browser; without a token, it asks for it."""
    words = escape(message[:1].upper() + message[1:]).replace("`", "")
    body = f"<h1>clocs</h1><p>{words}.</p>{_ASK if status == 401 else ''}"
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>clocs</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><body>{body}</body></html>"
    )
    return HTMLResponse(page, status, {"content-security-policy": _PLAIN_CSP})
