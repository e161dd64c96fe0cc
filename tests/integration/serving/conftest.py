from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.client import Channel, ServiceIdentity, create_channel
from libs.common.identity import IdentityIssuer
from services.deployer.testing import KEEPER_KEYS, running_deployer
from services.deployer.testing import Running as Deployer
from services.serving.testing import Running, running_serving


@pytest.fixture
async def deployer(tmp_path: Path) -> AsyncIterator[Deployer]:
    async with running_deployer(tmp_path / "deployer") as running:
        yield running


@pytest.fixture
async def to_deployer(deployer: Deployer) -> AsyncIterator[Channel]:
    """A channel on which serving calls the deployer."""
    issuer = IdentityIssuer("serving", KEEPER_KEYS["serving"], deployer.clock)
    async with create_channel(
        deployer.channel.target, identity=ServiceIdentity(issuer, "deployer")
    ) as channel:
        yield channel


@pytest.fixture
async def serving(tmp_path: Path, to_deployer: Channel) -> AsyncIterator[Running]:
    async with running_serving(tmp_path / "serving", to_deployer) as running:
        yield running
