"""Scripts compute with `isthmus.compute` in a confined worker."""

from __future__ import annotations

from services.device_agent.vm import Execution, Phase, Reason, TaskVm
from services.device_agent.vm.testing import build_task


async def test_a_script_computes_with_arrays(run) -> None:
    outcome = await run(
        """
        from isthmus.compute import matrix as m

        def post(context):
            scores = m.array([[0.5, 2.0], [1.5, -1.0]], "float32")
            shares = m.exp(scores) / m.sum(m.exp(scores), 1, keepdims=True)
            return {
                "best": m.argmax(shares, 1).tolist(),
                "sums": m.round(m.sum(shares, 1), 5).tolist(),
                "distinct": m.unique([3, 1, 3]).tolist(),
                "inverse": m.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).tolist(),
            }
        """
    )
    assert outcome.ok, outcome.message
    assert outcome.value == {
        "best": [1, 0],
        "sums": [1.0, 1.0],
        "distinct": [1, 3],
        "inverse": [[0.5, 0.0], [0.0, 0.25]],
    }


async def test_a_script_prepares_images(run) -> None:
    outcome = await run(
        """
        import base64
        from isthmus.compute import Invalid, image, matrix

        PNG = (
            "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGP4z8DAwPAfAAcAAf9+CLHQAAAAAElFTkSuQmCC"
        )

        def post(context):
            gray = matrix.asarray([[0, 100], [200, 50]], "uint8")
            large = image.resize(gray, (4, 4), interpolation=image.INTER_NEAREST)
            _, mask = image.threshold(large, 60, 255, image.THRESH_BINARY)
            try:
                image.blur(gray, (0, 3))
            except Invalid as error:
                why = str(error)
            return {
                "shape": list(large.shape),
                "white": image.countNonZero(mask).item(),
                "drawn": image.rectangle(gray, (0, 0), (1, 0), 9, image.FILLED).tolist(),
                "read": image.imdecode(base64.b64decode(PNG), image.IMREAD_COLOR_RGB).tolist(),
                "why": why,
            }
        """
    )
    assert outcome.ok, outcome.message
    assert outcome.value == {
        "shape": [4, 4],
        "white": 8,
        "drawn": [[9, 9], [200, 50]],
        "read": [[[255, 0, 0], [0, 0, 255]]],
        "why": outcome.value["why"],
    }
    assert "ksize" in outcome.value["why"]


async def test_what_it_refuses_can_be_caught(run) -> None:
    outcome = await run(
        """
        from isthmus.compute import Invalid, matrix

        def post(context):
            try:
                matrix.reshape([1, 2, 3], (2, 2))
            except Invalid as error:
                return {"why": str(error)}
        """
    )
    assert outcome.ok, outcome.message
    assert "3 elements" in outcome.value["why"]


async def test_the_packages_beneath_stay_out_of_reach(run) -> None:
    outcome = await run(
        """
        import sys
        from isthmus.compute import matrix

        def post(context):
            found = [name for name in sys.modules if name.partition(".")[0] in ("libs", "services")]
            try:
                import libs.compute
            except ModuleNotFoundError as error:
                return {"why": str(error), "found": found}
        """
    )
    assert outcome.ok, outcome.message
    assert "agent's own" in outcome.value["why"]
    assert outcome.value["found"] == []


async def test_two_tasks_share_one_library(vm: TaskVm) -> None:
    source = """
        from isthmus.compute import matrix
        import isthmus.compute.matrix

        def post(context):
            assert matrix is isthmus.compute.matrix
            return {"sum": matrix.sum(matrix.arange(4)).item()}
        """
    for task in ("one", "two"):
        assert (await vm.load(build_task({Phase.POST: source}, task=task, version="1"))).ok
        outcome = await vm.execute(Execution(task, "1"))
        assert outcome.value == {"sum": 6}


async def test_an_uncaught_refusal_shows_the_scripts_own_lines(run) -> None:
    outcome = await run(
        """
        from isthmus.compute import matrix

        def post(context):
            return {"x": matrix.linalg.inv([[0.0]]).tolist()}
        """
    )
    assert outcome.reason is Reason.EXCEPTION
    assert "the matrix is singular" in outcome.message
    assert "linear.py" not in outcome.message
