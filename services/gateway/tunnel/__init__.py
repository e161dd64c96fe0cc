"""The gateway's role `tunnel`: the cloud end of the devices' tunnel and its durable log.

`store/` keeps frames (the `Log` protocol, on files and in memory), `domain/` takes connections and exports,
`service.py` and `convert.py` put both on gRPC, `app.py` wires them up.
"""
