"""Who may have versions tried: the deployer, for the tenant whose version it is."""

from libs.common.access import Access

ACCESS: dict[str, Access] = {
    "/isthmus.device_agent.v1.SimulatorService/Simulate": Access(
        kinds=frozenset(), callers=frozenset({"deployer"})
    )
}
