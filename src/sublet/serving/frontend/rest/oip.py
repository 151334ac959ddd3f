"""The Open Inference Protocol (KServe V2) over HTTP, with raw tensors behind the JSON.

The signature is `serving_default`, or the one that the request's parameter `signature_name` names.
"""

import re
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote_to_bytes

import sublet
from sublet.channel.codes import Code, invalid_argument
from sublet.errors import ServingError
from sublet.serving.frontend import checks, oip_codec
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.rest import documents, oip_tensors, writing
from sublet.serving.frontend.rest.exchange import Answerer, ModelCalls, Pending, background
from sublet.serving.frontend.rest.messages import Reply, Request
from sublet.serving.frontend.shared_memory import ClientMemory, Regions

_Target = tuple[str, int | None, None]  # A model, a version, and no label.
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/(\d+))?(?:/(ready|infer|config|stats))?", re.A)
CHANGES = "/v2/repository/models/"
"""How the paths begin that change what is served: `Right.RELOAD` is asked for them."""
_CHANGE = re.compile(CHANGES + r"([^/]+)/(load|unload)", re.A)
_REGIONS = re.compile(
    r"/v2/systemsharedmemory(?:/region/([^/]+))?/(status|register|unregister)", re.A
)
_EXTENSIONS = ["binary_tensor_data", "classification", "model_configuration", "statistics"]


class OipApi:
    def __init__(
        self, backend: ModelBackend, calls: ModelCalls, regions: Regions | None = None
    ) -> None:
        self._backend = backend
        self._calls = calls
        self._regions = regions

    def find(self, method: str, path: str) -> Answerer:
        """What answers requests of this method and path. Raises ServingError."""
        reads = method in ("GET", "HEAD")
        path = path.rstrip("/")
        if path == "/v2/models/stats" and reads:
            return partial(self._statistics, ("", None, None))
        if match := _MODEL.fullmatch(path):
            name = unquote_to_bytes(match[1]).decode("utf-8", "replace")
            target = name, None if match[2] is None else _number(match[2]), None
            if match[3] == "infer" and method == "POST":
                return partial(self._infer, target)
            looks: dict[str | None, Callable[[_Target, Request], Reply | Pending]] = {
                None: self._model,
                "ready": self._model_ready,
                "config": self._config,
                "stats": self._statistics,
            }
            if match[3] in looks and reads:
                return partial(looks[match[3]], target)
        elif reads and path == "/v2/health/ready":
            return self._ready
        elif reads and path == "/v2":
            return self._server
        elif reads and path == "/v2/health/live":
            return _healthy
        elif path == "/v2/repository/index" and method == "POST":
            return self._index
        elif (change := _CHANGE.fullmatch(path)) and method == "POST":
            name = unquote_to_bytes(change[1]).decode("utf-8", "replace")
            return partial(self._change, name, change[2] == "load")
        elif region := _REGIONS.fullmatch(path):
            name = unquote_to_bytes(region[1] or "").decode("utf-8", "replace")
            if region[2] == "status" and reads:
                return partial(self._region_status, name)
            if region[2] == "register" and name and method == "POST":
                return partial(self._register, name)
            if region[2] == "unregister" and method == "POST":
                return partial(self._unregister, name)
        raise ServingError(f"Nothing is served at {method} {path[:200]}.", Code.NOT_FOUND)

    def _ready(self, request: Request) -> Reply:
        return self._unless(self._backend.unready())

    def _model_ready(self, target: _Target, request: Request) -> Reply:
        return self._unless(self._backend.unready(self._calls.find(target)))

    @staticmethod
    def _unless(reason: str) -> Reply:
        if reason:
            raise ServingError(reason, Code.UNAVAILABLE)
        return Reply(200, b"")

    def _model(self, target: _Target, request: Request) -> Reply:
        version = self._calls.find(target)
        _, signature = checks.check_signature(version.described(), "", rest=True)
        document = oip_codec.model_metadata(self._backend.catalogue, version.model, signature)
        return Reply(200, writing.encode(document))

    def _config(self, target: _Target, request: Request) -> Reply:
        version = self._calls.find(target)
        _, signature = checks.check_signature(version.described(), "", rest=True)
        return Reply(200, writing.encode(oip_codec.model_config(version.model, signature)))

    def _index(self, request: Request) -> Reply:
        asked = documents.parse(request.body) if request.body.strip() else {}
        ready = asked.get("ready") is True
        index = oip_codec.repository_index(self._backend.catalogue, ready)
        return Reply(200, writing.encode(index))

    def _change(self, name: str, load: bool, request: Request) -> Pending:
        asked = documents.parse(request.body) if request.body.strip() else {}
        if load:
            oip_codec.check_change(oip_tensors.one_object(asked, "parameters"))
        return background(self._changed(name, load))

    async def _changed(self, name: str, load: bool) -> Reply:
        await self._backend.change_model(name, load)
        return Reply(200, b"")

    def _statistics(self, target: _Target, request: Request) -> Pending:
        return background(self._count(*target[:2]))

    async def _count(self, name: str, number: int | None) -> Reply:
        counts = await self._backend.statistics()
        document = oip_codec.model_statistics(self._backend.catalogue, counts, name, number)
        return Reply(200, writing.encode(document))

    def _infer(self, target: _Target, request: Request) -> Pending:
        split = request.head.split
        body = request.body
        if split is not None and split > len(body):
            raise invalid_argument("Inference-Header-Content-Length is larger than the body.")
        version = self._calls.find(target)
        self._calls.admit(version, request)
        document = documents.parse(body if split is None else body[:split])
        raw = memoryview(body)[len(body) if split is None else split :]
        parameters = oip_tensors.one_object(document, "parameters")
        oip_codec.check_parameters(parameters)
        chosen = parameters.get("signature_name", "")
        if type(chosen) is not str:
            raise invalid_argument("The parameter signature_name is a string.")
        name, signature = checks.check_signature(version.described(), chosen, rest=True)
        shared = self._shared_memory(request)
        inputs = oip_tensors.inputs(document, raw, shared, self._backend.memory)
        checks.check_inputs(signature, inputs)
        wanted = {
            oip_tensors.text(each, "name", "an output"): oip_tensors.one_object(each, "parameters")
            for each in oip_tensors.objects(document, "outputs")
        }
        places = {name: shared.place(asked) for name, asked in wanted.items()}
        checks.check_outputs(signature, tuple(wanted))
        identity = document.get("id")
        write = partial(
            oip_tensors.outcome,
            version,
            identity if type(identity) is str else None,
            wanted,
            places,
            parameters.get("binary_data_output") is True,
        )
        return self._calls.start(version, name, inputs, request, write, outputs=tuple(wanted))

    def _region_status(self, name: str, request: Request) -> Reply:
        regions, user = self._shared_memory(request).regions()
        return Reply(200, writing.encode(regions.registered(user, name)))

    def _register(self, name: str, request: Request) -> Reply:
        given = documents.parse(request.body)
        key, offset, size = given.get("key"), given.get("offset", 0), given.get("byte_size")
        if type(key) is not str or type(offset) is not int or type(size) is not int:
            raise invalid_argument("A region has a key, an offset and a byte_size.")
        regions, user = self._shared_memory(request).regions()
        regions.register(user, name, key, offset, size)
        return Reply(200, b"")

    def _unregister(self, name: str, request: Request) -> Reply:
        regions, user = self._shared_memory(request).regions()
        regions.unregister(user, name)
        return Reply(200, b"")

    def _shared_memory(self, request: Request) -> ClientMemory:
        # Who a client is costs a look into a table: only if it matters.
        user = None if self._regions is None else request.peer.user()
        return ClientMemory(self._regions, user)

    def _server(self, request: Request) -> Reply:
        can = oip_codec.extensions(_EXTENSIONS, self._regions is not None)
        document = {"name": "sublet", "version": sublet.__version__, "extensions": can}
        return Reply(200, writing.encode(document))


def _number(digits: str) -> int:
    """A version; one that is too large is just not found."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 19 else 2**63


def _healthy(request: Request) -> Reply:
    return Reply(200, b"")
