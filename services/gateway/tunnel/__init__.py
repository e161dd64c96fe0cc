"""The gateway's role `tunnel`: the cloud end of the devices' tunnel and its durable log.

`store/` keeps frames (the `Log` protocol, on files and in memory), `domain/` takes connections, requests and
exports, `service.py` and `convert.py` put them on gRPC, `models.py` asks serving, `app.py` wires them up.
"""
