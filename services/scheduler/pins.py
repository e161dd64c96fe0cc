"""The pins of jobs' artefacts, at the deployer."""

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc
from libs.common.client import Channel, on_behalf_of, rpc_errors
from libs.common.names import JobName

_CALL_S = 3.0


class DeployerPins:
    """See `services.scheduler.domain.jobs.Pins`."""

    def __init__(self, channel: Channel) -> None:
        """Call the deployer over a channel with this service's identity."""
        self._stub = blob_pb2_grpc.BlobServiceStub(channel)

    async def release(self, job: JobName) -> None:
        """See `Pins`."""
        with on_behalf_of(f"tenants/{job.tenant}"), rpc_errors():
            # A deployer that has just come back is waited for, and not refused for its earlier absence.
            await self._stub.UnpinBlobs(
                blob_pb2.UnpinBlobsRequest(resource=str(job)), timeout=_CALL_S, wait_for_ready=True
            )


class NoPins:
    """For a scheduler without a deployer: nothing is pinned, or it is somebody else's to release."""

    async def release(self, job: JobName) -> None:
        """Do nothing."""
