"""A process that leads until it is killed: `python holder.py ENDPOINT KEY IDENTITY TTL`."""

import asyncio
import sys

from libs.common.clock import SystemClock
from libs.common.etcd import EtcdClient, Leadership
from libs.common.rand import SystemRandomness


async def main(endpoint: str, key: str, identity: str, ttl: str) -> None:
    async with EtcdClient([endpoint], clock=SystemClock(), randomness=SystemRandomness()) as client:
        leadership = Leadership(client, key, ttl_s=float(ttl), identity=identity)
        async with leadership.hold() as term:
            print(term.create_revision, flush=True)
            await term.lost.wait()
            print("lost", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
