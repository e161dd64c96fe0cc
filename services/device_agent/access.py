"""Who may call the agent: whoever can open its socket (0600), that is, the user it runs as."""

from libs.common.access import Access

_ANYBODY = Access(public=True)
_PREFIX = "/isthmus.device_agent.v1.AgentService/"

ACCESS: dict[str, Access] = {
    f"{_PREFIX}{method}": _ANYBODY for method in ("SendEvents", "WatchResults", "GetStatus")
}
