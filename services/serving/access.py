"""Who may call what. A method without an entry is refused."""

from libs.common.access import PUBLIC, Access

# The tunnel brings requests of devices, on behalf of their tenant; the tuner tries configurations.
_CALLERS = frozenset({"tunnel", "tuner"})
_TUNER = frozenset({"tuner"})
_READ = Access("models:read", callers=_CALLERS)
_TUNER_READ = Access("models:read", callers=_TUNER)
_WRITE = Access("models:write", callers=_TUNER)

_INFERENCE = {
    "ServerLive": PUBLIC,
    "ServerReady": PUBLIC,
    "ServerMetadata": PUBLIC,
    "ModelReady": _READ,
    "ModelMetadata": _READ,
    "ModelInfer": _READ,
    "ModelConfig": _READ,
    "ModelStatistics": _TUNER_READ,
    "RepositoryIndex": _TUNER_READ,
    "RepositoryModelLoad": _WRITE,
    "RepositoryModelUnload": _WRITE,
}
_MODELS = {
    "PutModel": _WRITE,
    "GetModel": _TUNER_READ,
    "ListModels": _TUNER_READ,
    "DeleteModel": _WRITE,
    "CreateModelVersion": _WRITE,
    "ListModelVersions": _TUNER_READ,
    "DeleteModelVersion": _WRITE,
}

ACCESS: dict[str, Access] = {
    **{f"/inference.GRPCInferenceService/{method}": access for method, access in _INFERENCE.items()},
    **{f"/isthmus.serving.v1.ModelService/{method}": access for method, access in _MODELS.items()},
}
