"""Who this device is, and what time the gateway has.

The device key never leaves the state folder. The credential comes from the deployer and says whose key it is;
the device token, minted here, says that we hold it now.
"""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from libs.common.clock import Clock
from libs.common.keys import load_or_create_key
from libs.common.names import DeviceName

_ENROL_DOMAIN = b"isthmus-enrol-v1"
_TOKEN_TYPE = "isthmus-device+jwt"
_TOKEN_LIFE_S = 300.0
# Minted anew this long before it expires, so that none runs out on its way.
_TOKEN_MARGIN_S = 60.0


class CloudClock:
    """The gateway's time, from what it says in `x-isthmus-time` on every answer.

    Between answers the monotonic clock carries it on, so that a jump of the device's wall clock changes
    nothing. Before the first answer it is the wall clock plus the offset that was known last time.
    """

    def __init__(self, clock: Clock, offset_s: float = 0.0) -> None:
        self._clock = clock
        self._first_offset_s = offset_s
        self._anchor: tuple[float, float] | None = None

    def learn(self, server_time_s: float, sent: float, received: float) -> None:
        """Take the gateway's time, which it told between two moments of our monotonic clock."""
        self._anchor = (server_time_s, (sent + received) / 2)

    def now_s(self) -> float:
        """Return the gateway's time in Unix seconds."""
        if self._anchor is None:
            return self._clock.now().timestamp() + self._first_offset_s
        server_time_s, at = self._anchor
        return server_time_s + self._clock.monotonic() - at

    def now(self) -> datetime:
        """Return the gateway's time, aware, in UTC."""
        return datetime.fromtimestamp(self.now_s(), UTC)

    @property
    def offset_s(self) -> float:
        """What to add to the device's wall clock to get the gateway's time."""
        return self.now_s() - self._clock.now().timestamp()


@dataclass(frozen=True, slots=True)
class Credential:
    """What the deployer gave this device."""

    device: str
    """`tenants/{t}/devices/{d}`."""
    token: str
    issued_s: float
    """When it came, by the gateway's clock."""
    expires_s: float

    @property
    def name(self) -> DeviceName:
        """The device's name, taken apart."""
        return DeviceName.parse(self.device)

    @property
    def renew_s(self) -> float:
        """When to renew it: after half its life."""
        return (self.issued_s + self.expires_s) / 2

    def to_json(self) -> bytes:
        """Return what `from_json` reads back."""
        values = {
            "device": self.device,
            "token": self.token,
            "issued_s": self.issued_s,
            "expires_s": self.expires_s,
        }
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Credential":
        """Read what `to_json` wrote."""
        return cls(**json.loads(data))


class DeviceKey:
    """The device's own Ed25519 key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public: bytes = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._token: tuple[str, str, float] | None = None

    @classmethod
    def load_or_create(cls, path: Path) -> "DeviceKey":
        """Read the key file, or make it (0600).

        Raises:
            Precondition: when others may read it.
            Invalid: when it holds something else.
        """
        return cls(load_or_create_key(path))

    def prove(self, token: str, device_id: str) -> bytes:
        """Return the proof for EnrolRequest that we hold the key."""
        return self._key.sign(b"\0".join((_ENROL_DOMAIN, token.encode(), device_id.encode(), self.public)))

    def token(self, device: str, now_s: float) -> str:
        """Return a device token that is good at `now_s` of the gateway's clock and for a while longer."""
        if self._token is not None:
            known, token, until_s = self._token
            # A clock that went back makes what was minted look as if from the future: mint anew.
            if known == device and until_s - _TOKEN_LIFE_S <= now_s < until_s - _TOKEN_MARGIN_S:
                return token
        issued = int(now_s)
        claims = {"sub": device, "aud": "gateway", "iat": issued, "exp": issued + int(_TOKEN_LIFE_S)}
        token = jwt.encode(claims, self._key, algorithm="EdDSA", headers={"typ": _TOKEN_TYPE})
        self._token = (device, token, issued + _TOKEN_LIFE_S)
        return token

    def forget_token(self) -> None:
        """Mint anew next time: the gateway refused the last one."""
        self._token = None

    def fingerprint(self) -> str:
        """Return a short text that names the public key in messages."""
        return base64.urlsafe_b64encode(self.public[:9]).decode()
