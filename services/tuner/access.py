"""Who may call what. A method without an entry is refused."""

from libs.common.access import Access, has_scope
from libs.common.errors import Forbidden
from libs.common.identity import Identity

_BY_METHOD = {
    "CreateExperiment": Access("experiments:write"),
    "GetExperiment": Access("experiments:read"),
    "ListExperiments": Access("experiments:read"),
    "ListTrials": Access("experiments:read"),
    "WatchExperiment": Access("experiments:read"),
    "CancelExperiment": Access("experiments:write"),
    "ApplyExperiment": Access("experiments:write"),
    "DeleteExperiment": Access("experiments:write"),
}

ACCESS: dict[str, Access] = {
    f"/isthmus.tuner.v1.ExperimentService/{method}": access for method, access in _BY_METHOD.items()
}


def check_may_apply(identity: Identity) -> None:
    """Let pass who may change models, too: an application changes how one is served.

    Raises:
        Forbidden: MISSING_SCOPE.
    """
    if not has_scope(identity, "models:write"):
        raise Forbidden(
            f"the key {identity.principal!r} lacks the scope 'models:write', which changing a model takes; "
            "use one that has both",
            reason="MISSING_SCOPE",
            metadata={"scope": "models:write"},
        )
