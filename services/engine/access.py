"""Who may call what. A method without an entry is refused."""

from libs.common.access import Access

_BY_METHOD = {
    "Optimize": Access("models:write"),
    "Explain": Access("models:read"),
    "Infer": Access("models:read"),
    "ListOperators": Access("models:read"),
}

ACCESS: dict[str, Access] = {
    f"/isthmus.engine.v1.EngineService/{method}": access for method, access in _BY_METHOD.items()
}
