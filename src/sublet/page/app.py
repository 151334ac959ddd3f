"""The routes of the page. All are behind the gate (`gate.py`), and below the base of `Access`."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast, get_args

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sublet.client.connection import connect
from sublet.client.logs import Stream
from sublet.errors import BadRequest, BrokerGone, SubletError
from sublet.home import Home
from sublet.page.access import Access
from sublet.page.gate import Gate
from sublet.page.jobs import act, read_event_logs, read_job
from sublet.page.live import Live
from sublet.page.log_text import read_piece
from sublet.page.models import read_model_history, read_models
from sublet.page.scalars import ScalarReader
from sublet.page.sweeps import SweepReader
from sublet.page.usage import read_usage_since
from sublet.wire.messages import Verb

_STATIC = Path(__file__).parent / "static"
_VERBS: tuple[Verb, ...] = ("cancel", "pause", "resume")
_LARGEST = (1 << 63) - 1
_USED = "This link was used before, or is too old.\nRun `sublet ui` again for a new one.\n"


def make_app(home: Home, access: Access, hosts: tuple[str, ...]) -> Starlette:
    """The page for this home, for whom `access` lets in by one of these host names."""
    page = _Page(home, access)
    api = [
        Route("/history", page.history),
        Route("/live", page.follow),
        Route("/models", page.models),
        Route("/models/history", page.model_history),
        Route("/sweeps", page.sweeps),
        Route("/sweeps/{sweep}", page.sweep),
        Route("/jobs/{job:int}", page.job),
        Route("/jobs/{job:int}/log", page.log),
        Route("/jobs/{job:int}/scalars", page.scalars),
        Route("/jobs/{job:int}/{verb}", page.act, methods=["POST"]),
    ]
    base = access.base.rstrip("/")
    return Starlette(
        routes=[
            Route("/enter", page.enter),
            Route("/links", page.link, methods=["POST"]),
            Mount(f"{base}/api", routes=api),
            Mount(base, StaticFiles(directory=_STATIC, html=True)),
        ],
        middleware=[Middleware(Gate, access=access, hosts=hosts)],
        exception_handlers={SubletError: _refused, HTTPException: _refused_plainly},
        lifespan=page.lifespan,
    )


class _Page:
    def __init__(self, home: Home, access: Access) -> None:
        self._home = home
        self._access = access
        self._live = Live(home)
        self._scalars = ScalarReader()
        self._sweeps = SweepReader(home)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        app.state.live = self._live
        yield
        self._live.close()

    def enter(self, request: Request) -> Response:
        """Open a session for a code; from there on no secret is in an address."""
        if request.method == "HEAD":  # Somebody previews the link: the code is still good.
            return Response()
        session = self._access.redeem(request.query_params.get("code", ""))
        if session is None:
            return PlainTextResponse(_USED, 401)
        response = RedirectResponse(self._access.base, 303)
        response.set_cookie(
            self._access.cookie, session, path=self._access.base, httponly=True, samesite="strict"
        )
        return response

    def link(self, request: Request) -> Response:
        """A new code, for who has the token."""
        return _json({"code": self._access.new_code()})

    async def follow(self, request: Request) -> Response:
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._live.follow(), 200, headers, "text/event-stream")

    def history(self, request: Request) -> Response:
        since = request.query_params.get("since", "0")
        try:
            moment = float(since)
        except ValueError:
            raise BadRequest("`since` is a number of seconds since the epoch.") from None
        if not 0 <= moment < 1e12:
            raise BadRequest("`since` is a number of seconds since the epoch.")
        return _json(read_usage_since(self._home, moment))

    def job(self, request: Request) -> Response:
        number = _number(request)
        self._need_broker()
        return _json(read_job(self._home, number))

    def log(self, request: Request) -> Response:
        asked = request.query_params
        stream = asked.get("stream", "both")
        if stream not in get_args(Stream):
            raise BadRequest("`stream` is both, stdout or stderr.")
        position = _count(asked["from"]) if "from" in asked else None
        attempt = _count(asked.get("attempt", "1"))
        number = _number(request)
        piece = read_piece(self._home.logs, number, attempt, cast(Stream, stream), position)
        return _json(piece)

    def scalars(self, request: Request) -> Response:
        asked = request.query_params
        attempt, seen = _count(asked.get("attempt", "1")), _count(asked.get("seen", "0"))
        number = _number(request)
        self._need_broker()
        logs = read_event_logs(number, attempt)
        return _json(self._scalars.read(f"{number}.{attempt}", logs, seen))

    def models(self, request: Request) -> Response:
        return _json(read_models())

    def model_history(self, request: Request) -> Response:
        asked = request.query_params
        engine, model = asked.get("engine", ""), asked.get("model", "")
        return _json(read_model_history(engine, model, _count(asked.get("version", "1"))))

    def sweeps(self, request: Request) -> Response:
        return _json(self._sweeps.rows())

    def sweep(self, request: Request) -> Response:
        seen = request.query_params.get("seen", "")
        return _json(self._sweeps.page(request.path_params["sweep"], seen))

    def act(self, request: Request) -> Response:
        verb = request.path_params["verb"]
        if verb not in _VERBS:
            raise HTTPException(404)
        number = _number(request)
        self._need_broker()
        return _json({"said": act(number, verb)})

    def _need_broker(self) -> None:
        """Refuse if there is none: a question would start one, and undo `sublet down`."""
        connection = connect(self._home)
        if connection is None:
            raise BrokerGone("No broker runs.", "The next `sublet` command starts one.")
        connection.close()


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _number(request: Request) -> int:
    return _count(str(request.path_params["job"]))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _LARGEST:
        raise BadRequest(f"{text[:30]!r} is not a number that can be here.")
    return int(text)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, SubletError)
    said = {"message": error.message, "hint": error.hint}
    status = 400 if isinstance(error, BadRequest) else 503
    return Response(msgspec.json.encode(said), status, media_type="application/json")


async def _refused_plainly(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
