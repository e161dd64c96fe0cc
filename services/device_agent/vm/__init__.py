"""The task VM: runs the scripts of verified tasks in killable processes.

    vm = TaskVm(VmConfig(scratch_dir=Path(...)), clock=clock, randomness=randomness)
    await vm.start()                              # warm workers; raises Unavailable if none can start
    outcome = await vm.load(LoadedTask(...))      # compiles and runs the module bodies in a worker, once
    outcome = await vm.execute(Execution("genre-profile", "1.2.0", events, features))
    await vm.unload("genre-profile", "1.2.0")     # waiting runs end with UNLOADED
    await vm.close()                              # kills the workers; never hangs

`load` and `execute` return an `Outcome` for everything that a script can do wrong (`reason`: EXCEPTION,
TIMEOUT, MEMORY, CRASH, BAD_INPUT, BAD_REQUEST, BAD_RESULT, LOAD_ERROR) and raise only for what the caller or
the machine does: `NotFound` (the version isn't loaded), `Exhausted` (the queue is full, the run was the
oldest waiting of its task and was dropped, or it waited longer than `max_wait_s`), `Invalid` (events and
features too large), `Unavailable` (the VM is closing or can't start workers). Cancelling `execute` takes a
waiting run out of the queue and kills the worker of one that has started.

In the middle of a run its scripts may ask a model in the cloud (`context.ask`): the worker blocks, and
`Execution.answer` is awaited on the agent's side. That one decides by the manifest whether what is asked may
leave the device; a refusal fails the run whatever the worker says then. The wait counts for the run's wall
time, and a worker that dies ends it at once.

**Parts.** `model` what goes in and comes out; `pool` the VM itself: queue, workers, restarts; `queue` whose
turn it is (tasks take turns, so that one task's backlog never starves another); `wire` requests and replies;
`process` one worker seen from outside: start, call, kill, reap; `worker/` what runs inside the child. The
child imports nothing of ours but `worker/` and `isthmus.task`: no grpc, no protobuf, no numpy until a script
asks or a task has a model. For a model it borrows `libs.runtime`, out of the scripts' reach.

**What is confined.** The process is a fault boundary first: only signed tasks get here. A run can't outlive
its wall time (killed from outside, whatever it swallows), can't grow past its memory limit, can't take the
agent or another run down with it, and dies with the agent. On Linux a worker also gives up, before it sees a
script: making sockets and processes, `exec`, signalling or tracing others (seccomp); and reading or writing
files outside what it needs: the Python installation, its private folder, the folders of `VmConfig.readable`
(Landlock). `VmStats.confinement` says which of these hold on this kernel. Not confined: CPU within the wall
time, timing channels, what the kernel itself gets wrong, and tasks that share a worker from one another (they
share an interpreter, one after the other). It is no sandbox for code that nobody vouches for.
"""

from services.device_agent.vm.model import (
    Answerer,
    Ask,
    Execution,
    LoadedTask,
    Model,
    Outcome,
    Phase,
    Reason,
    Reply,
    RunLimits,
    Script,
    Sent,
    VmConfig,
    VmStats,
)
from services.device_agent.vm.pool import TaskVm

__all__ = [
    "Answerer",
    "Ask",
    "Execution",
    "LoadedTask",
    "Model",
    "Outcome",
    "Phase",
    "Reason",
    "Reply",
    "RunLimits",
    "Script",
    "Sent",
    "TaskVm",
    "VmConfig",
    "VmStats",
]
