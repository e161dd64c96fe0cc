"""The Secrets of the services: `python -m deploy.kubernetes.secrets --keys DIR | kubectl apply -f -`.

Prints, as one JSON list:

    Secret NAME-identity       identity.key, by which NAME signs its calls
    ConfigMap isthmus-trust    everybody's public halves
    Secret NAME-tls            tls.crt, tls.key, ca.crt; not with --identity-only: cert-manager makes them
    Secret postgres-password   the superuser's, of the development overlay

The keys themselves stay in `--keys`, a folder that only you can read: keep it safe, or remove it and make new
keys the next time. A second call prints the same, with what had run out renewed.
"""

import argparse
import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.docker.keys import Holder, make
from deploy.local import topology
from libs.common.errors import Error

OTHERS = ("prometheus", "etcd", "postgres")
"""Who has a certificate besides the services."""
TRUST = "isthmus-trust"
_LABELS = {"app.kubernetes.io/part-of": "isthmus"}
Resource = Mapping[str, object]


def holders() -> list[Holder]:
    """Return whoever gets keys: every service, and who talks with them."""
    uid = os.geteuid()
    return [Holder(name, uid) for name in topology.IDENTITIES] + [
        Holder(name, uid, service=False) for name in OTHERS
    ]


def _resource(kind: str, name: str, namespace: str, **members: object) -> Resource:
    metadata = {"name": name, "namespace": namespace, "labels": _LABELS}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **members}


def _secret(name: str, namespace: str, files: Mapping[str, Path], kind: str = "Opaque") -> Resource:
    data = {key: base64.b64encode(path.read_bytes()).decode() for key, path in files.items()}
    return _resource("Secret", name, namespace, type=kind, data=data)


def resources(folder: Path, namespace: str, *, identity_only: bool = False) -> list[Resource]:
    """Return the resources for a folder that `deploy.docker.keys.make` has filled for `holders`."""
    found = []
    for name in topology.IDENTITIES:
        found.append(_secret(f"{name}-identity", namespace, {"identity.key": folder / name / "identity.key"}))
    trust = sorted((folder / topology.IDENTITIES[0] / "trust").glob("*.pub"))
    believed = {path.name: path.read_text("ascii") for path in trust}
    found.append(_resource("ConfigMap", TRUST, namespace, data=believed))
    if identity_only:
        return found
    for name in (*topology.IDENTITIES, *OTHERS):
        own = folder / name
        files = {"tls.crt": own / "tls.pem", "tls.key": own / "tls.key", "ca.crt": own / "ca.pem"}
        found.append(_secret(f"{name}-tls", namespace, files, "kubernetes.io/tls"))
    found.append(_secret("postgres-password", namespace, {"password": folder / "postgres" / "password"}))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.kubernetes.secrets", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--keys", type=Path, required=True, metavar="DIR", help="where the keys are kept")
    parser.add_argument("--namespace", default="isthmus", metavar="NAME", help="default: isthmus")
    parser.add_argument("--identity-only", action="store_true", help="leave the certificates to cert-manager")
    flags = parser.parse_args(arguments)
    try:
        flags.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        make(flags.keys, holders(), own=False)
        items = resources(flags.keys, flags.namespace, identity_only=flags.identity_only)
    except (Error, OSError) as error:
        print(f"secrets: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
