"""Who may call what."""

from libs.common.access import Access

ACCESS: dict[str, Access] = {
    "/isthmus.tunnel.v1.TunnelService/Connect": Access(kinds=frozenset({"device"})),
    "/isthmus.tunnel.v1.ExportService/Export": Access("tunnel:read"),
}
