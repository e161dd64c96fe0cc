from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.client import Channel, ServiceIdentity, create_channel
from libs.common.identity import IdentityIssuer
from services.deployer.testing import KEEPER_KEYS, running_deployer
from services.deployer.testing import Running as Deployer
from services.engine.testing_service import Running, running_engine


@pytest.fixture
async def deployer(tmp_path: Path) -> AsyncIterator[Deployer]:
    async with running_deployer(tmp_path / "deployer") as running:
        yield running


@pytest.fixture
async def to_deployer(deployer: Deployer) -> AsyncIterator[Channel]:
    """A channel on which the engine calls the deployer."""
    issuer = IdentityIssuer("engine", KEEPER_KEYS["engine"], deployer.clock)
    async with create_channel(
        deployer.channel.target, identity=ServiceIdentity(issuer, "deployer")
    ) as channel:
        yield channel


@pytest.fixture
async def engine(tmp_path: Path, to_deployer: Channel) -> AsyncIterator[Running]:
    async with running_engine(tmp_path / "engine", to_deployer) as running:
        yield running
