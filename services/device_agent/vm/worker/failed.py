"""How a load or a run says that it has failed."""


class Failed(Exception):
    """A load or a run has failed; `reason` is one of the VM's."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
