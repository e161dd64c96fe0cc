"""What the processes find at their start: keys, certificates, the operator's key; and the CLI's settings."""

import json
import subprocess

from deploy.local import topology
from deploy.local.certificates import Authority
from deploy.local.errors import StackError
from deploy.local.layout import ROOT, Layout, Options
from deploy.local.supervision import replace_file
from deploy.local.topology import Process
from libs.common.keys import load_or_create_key, publish_key

TENANT = "default"
"""The tenant that every stack has; its operator's key belongs to it."""
ADMIN_KEY_S = 60.0
"""Seconds that making the operator's key may take, the database's first migration included."""


def make_keys(layout: Layout) -> None:
    """Make the services' identity keys and the gateway's certificate where they are missing."""
    Authority(layout.tls_dir).issue("gateway")
    for name in topology.IDENTITIES:
        key = load_or_create_key(layout.identity_dir / f"{name}.key")
        publish_key(layout.trust_dir, name, key.public_key())


def make_admin_key(layout: Layout, gateway: Process) -> None:
    """Have the gateway make the tenant and the operator's API key, unless that key is good already.

    The gateway must not run: its database takes one process at a time.

    Raises:
        StackError: the gateway can't; the text holds what it said.
    """
    command = [*gateway.command, "admin-key", "--tenant", TENANT, "--out", str(layout.admin_key_file)]
    command += ["--database-url", topology.database_url(layout, "gateway")]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ADMIN_KEY_S,
            umask=0o077,
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(f"the operator's API key was not made within {ADMIN_KEY_S:.0f} s") from error
    if done.returncode != 0:
        raise StackError(f"the operator's API key can't be made:\n{(done.stderr or done.stdout).strip()}")


def write_cli_settings(layout: Layout, options: Options, gateway: Process) -> None:
    """Let the ``isthmus`` command find the stack: it reads these settings in the stack's home."""
    settings = {
        "gateway": gateway.endpoints[0].address,
        "api_key_file": layout.admin_key_file.name,
        "tenant": TENANT,
        "keys_dir": "keys",
    }
    if options.tls:
        settings["ca_file"] = str(layout.ca_file.relative_to(layout.home))
    replace_file(layout.home / "cli.json", json.dumps(settings, indent=2) + "\n")
