"""Where a call goes: by its method's proto package."""

from dataclasses import dataclass

# Services that only others behind the door call, and those dial directly.
BEHIND_THE_DOOR = frozenset({"isthmus.scheduler.v1.RunnerService"})
# The Open Inference Protocol, whose package is another's.
INFERENCE = "inference.GRPCInferenceService"


@dataclass(frozen=True, slots=True)
class Method:
    """A method as the descriptors have it. `path` is "/package.Service/Method"."""

    path: str
    client_streaming: bool
    server_streaming: bool

    @property
    def service(self) -> str:
        """The service's full name, with its package."""
        return self.path[1:].rpartition("/")[0]

    @property
    def name(self) -> str:
        """The method's own name."""
        return self.path.rpartition("/")[2]

    @property
    def upstream(self) -> str:
        """Who answers: the `name` of `isthmus.<name>.v1`, or serving; "" for what isn't passed on."""
        if self.service in BEHIND_THE_DOOR:
            return ""
        if self.service == INFERENCE:
            return "serving"
        words = self.service.split(".")
        return words[1] if len(words) >= 4 and words[0] == "isthmus" else ""
