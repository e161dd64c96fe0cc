"""What every Isthmus process needs: errors, configuration, identity, telemetry, servers, clients, stores.

Read in this order: `errors` and `names` (the vocabulary), `config` (how a process starts), `identity` and
`access` (who may call what), `server` and `client` (how a call travels), `telemetry` and `logs` (what is
seen of it), `sql` (what is kept; cloud only).
"""
