"""tensorflow.serving.ModelService: the states of a model, and a new set of models."""

from sublet.channel.codes import Code
from sublet.errors import BadRequest, ServingError
from sublet.serving.access import Right
from sublet.serving.frontend.grpc.calls import Data, Method, Methods
from sublet.serving.frontend.grpc.requests import choice, has_spec, parse
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.proto import serving


class Models:
    """Answers from a desk."""

    def __init__(self, desk: ModelBackend) -> None:
        self._desk = desk

    def methods(self) -> Methods:
        """By path."""
        path = b"/tensorflow.serving.ModelService/"
        return {
            path + b"GetModelStatus": Method(self.get_model_status),
            path + b"HandleReloadConfigRequest": Method(
                self.handle_reload_config_request, right=Right.RELOAD
            ),
        }

    async def get_model_status(self, data: Data, deadline: float | None) -> bytes:
        """The state of one version, or of all."""
        request = parse(serving("GetModelStatusRequest"), data)
        has_spec(request)
        spec = request.model_spec
        response = serving("GetModelStatusResponse")()
        for version in self._desk.catalogue.known(spec.name, *choice(spec)):
            status = response.model_version_status.add(version=version.number, state=version.state)
            status.status.error_code = version.code
            status.status.error_message = version.error
            status.devices.extend(version.devices)
        answer: bytes = response.SerializeToString()
        return answer

    async def handle_reload_config_request(self, data: Data, deadline: float | None) -> bytes:
        """Replace the set of models."""
        config = parse(serving("ReloadConfigRequest"), data).config
        if config.WhichOneof("config") != "model_config_list":
            raise ServingError(
                "ServerModelConfig type not supported by HandleReloadConfigRequest."
                " Only ModelConfigList is currently supported",
                Code.INVALID_ARGUMENT,
            )
        try:
            await self._desk.reload(config.SerializeToString())
        except BadRequest as wrong:
            raise ServingError(str(wrong), Code.INVALID_ARGUMENT) from None
        response = serving("ReloadConfigResponse")()
        response.status.SetInParent()
        answer: bytes = response.SerializeToString()
        return answer
