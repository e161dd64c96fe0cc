"""Keys and certificates for containers: `python -m deploy.docker.keys --out DIR NAME[:UID[:cert]] …`.

Makes what is missing and renews what runs out; a second call changes nothing else. In `--out`:

    authority/          the internal authority's key: nobody's but this command's
    NAME/ca.pem         whose certificates to believe
    NAME/tls.pem, .key  the certificate of NAME, for the host names NAME and localhost
    NAME/identity.key   signs NAME's calls to other services
    NAME/trust/*.pub    everybody's public halves
    NAME/password       a random password, of whoever has `:cert`: those aren't ours and have no identity

Each folder belongs to UID alone, so that each container is given its own and no other.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.certificates import Authority
from libs.common.errors import Error, Invalid
from libs.common.fsio import write_atomic
from libs.common.keys import load_or_create_key, publish_key
from libs.common.names import check_id

SERVICE_UID = 10001
"""The user of the image (see its Dockerfile)."""
LAST_UID = 2**31 - 1
_AUTHORITY = "authority"


@dataclass(frozen=True, slots=True)
class Holder:
    """Whoever gets a folder: a name, the user of its container, whether it is one of our services."""

    name: str
    uid: int = SERVICE_UID
    service: bool = True

    @staticmethod
    def parse(text: str) -> "Holder":
        """Return the holder that `NAME[:UID[:cert]]` describes.

        Raises:
            Invalid: saying what is wrong.
        """
        name, *rest = text.split(":")
        check_id(name, "name")
        if name == _AUTHORITY:
            raise Invalid(f"name: {name!r} is where the authority's own key lies; take another")
        if len(rest) > 2 or rest[1:] not in ([], ["cert"]):
            raise Invalid(f"{text!r}: is not NAME, NAME:UID or NAME:UID:cert")
        uid = rest[0] if rest else str(SERVICE_UID)
        if not (uid.isascii() and uid.isdigit() and int(uid) <= LAST_UID):
            raise Invalid(f"{text!r}: {uid!r} is no user id; give a number from 0 to {LAST_UID}")
        return Holder(name, int(uid), service=not rest[1:])


def make(out: Path, holders: Sequence[Holder], *, own: bool = True) -> None:
    """Bring every holder's folder up to date.

    Args:
        out: where; made when missing.
        holders: who gets a folder. Those that are services believe one another.
        own: whether to give the folders to their users, which takes root.

    Raises:
        Invalid: a name comes twice, or a key file holds something else.
        OSError: the file system refuses.
    """
    names = [holder.name for holder in holders]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"name: {name!r} comes twice")
    authority = Authority(out / _AUTHORITY)
    keys = {
        holder.name: load_or_create_key(out / holder.name / "identity.key")
        for holder in holders
        if holder.service
    }
    for holder in holders:
        folder = out / holder.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_file, certificate_file = authority.issue(holder.name)
        write_atomic(folder / "ca.pem", authority.certificate_file.read_bytes())
        write_atomic(folder / "tls.pem", certificate_file.read_bytes())
        write_atomic(folder / "tls.key", key_file.read_bytes(), 0o600)
        if holder.service:
            for name, key in keys.items():
                publish_key(folder / "trust", name, key.public_key())
        elif not (folder / "password").exists():
            write_atomic(folder / "password", secrets.token_urlsafe(24).encode(), 0o600)
        if own:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, holder.uid, holder.uid)
            folder.chmod(0o700)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.docker.keys", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the folders go")
    parser.add_argument("holders", nargs="+", metavar="NAME[:UID[:cert]]", help="who gets one")
    flags = parser.parse_args(arguments)
    try:
        make(flags.out, [Holder.parse(text) for text in flags.holders])
    except (Error, OSError) as error:
        print(f"keys: {error}", file=sys.stderr)
        return 1
    print(f"keys of {len(flags.holders)} containers are in {flags.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
