"""The optimiser over fakes: turns, what is kept and what isn't."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path

import pytest

from libs.common.blobs import BlobRef
from libs.common.errors import Exhausted, Internal, Invalid, NotFound
from libs.common.testing import eventually
from libs.runtime.codec import encode
from services.engine.domain.budget import Budget
from services.engine.domain.explanation import Origins
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.domain.model import Made, Model, Stage, Verdict
from services.engine.domain.optimiser import Optimised, Optimiser
from services.engine.testing_programs import Sketch

FILE = BlobRef.of(b"a model")
MODEL = Model(FILE)
NOWHERE = Path("/nowhere")
BATCH = {"n": (1, 4)}


def plan() -> bytes:
    s = Sketch(n=(1, 4))
    program = merge(s.program(y=s.compute("exp", s.input("x", "n"))))
    return encode(lower(program, model_digest=FILE.digest, producer="the test"))


MADE = Made(plan(), Origins({"Exp": 1}, 0), Verdict(0.0, 8))


class Fakes:
    """Blobs, cache, crew and meter in memory; the crew makes what `makes` holds, in order."""

    def __init__(self, *makes: Made | Exception, budget: int = 1 << 30, folder: Path = NOWHERE) -> None:
        self.folder = folder
        self.downloads: list[str] = []
        self.makes = list(makes)
        self.kept: dict[str, Made] = {}
        self.uploads: list[tuple[str, bytes]] = []
        self.folders = 0
        self.sizes: list[dict[str, int]] = []
        self.hits: list[bool] = []
        self.uploading = asyncio.Event()
        self.uploading.set()
        self.optimiser = Optimiser(self, self, self, self, Budget(budget), "the test")  # type: ignore[arg-type]

    async def check(self, tenant: str, ref: BlobRef) -> None:
        if tenant != "acme":
            raise NotFound("no such blob")

    async def read(self, tenant: str, ref: BlobRef, max_bytes: int) -> bytes:
        await self.check(tenant, ref)
        return MADE.plan

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        assert path.parent.is_dir() or path.name == "model.onnx"
        self.downloads.append(str(path.relative_to(self.folder)))

    async def upload(self, tenant: str, content: bytes) -> BlobRef:
        self.uploads.append((tenant, content))
        await self.uploading.wait()
        return BlobRef.of(content)

    async def get(self, key: str) -> Made | None:
        return self.kept.get(key)

    async def put(self, key: str, made: Made) -> None:
        self.kept[key] = made

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[Path]:
        self.folders += 1
        try:
            yield self.folder
        finally:
            self.folders -= 1

    async def make(
        self,
        folder: Path,
        dimensions: Mapping[str, tuple[int, int]],
        *,
        verify: bool,
        sizes: Mapping[str, int] | None = None,
    ) -> AsyncGenerator[Stage | Made, None]:
        self.sizes.append(dict(sizes or {}))
        yield Stage("read", 0.1, "")
        await asyncio.sleep(0)
        result = self.makes.pop(0)
        if isinstance(result, Exception):
            raise result
        yield result if verify else Made(result.plan, result.origins, None)

    def stage(self, stage: Stage) -> None:
        assert stage.name == "read"

    def cached(self, hit: bool) -> None:
        self.hits.append(hit)

    async def optimise(self, tenant: str = "acme", model: Model = MODEL) -> Optimised:
        events = self.optimiser.optimise(tenant, model, BATCH, validate_only=False)
        last = [event async for event in events][-1]
        assert isinstance(last, Optimised)
        return last


async def test_the_first_of_many_makes_it_and_the_others_get_it() -> None:
    fakes = Fakes(MADE)
    results = await asyncio.gather(*(fakes.optimise() for _ in range(5)))
    assert [result.cached for result in results] == [False, True, True, True, True]
    assert len(fakes.uploads) == 5
    assert fakes.hits.count(False) == 1


async def test_when_the_first_fails_the_next_tries_itself() -> None:
    fakes = Fakes(Exhausted("no room"), MADE)
    first, second = await asyncio.gather(fakes.optimise(), fakes.optimise(), return_exceptions=True)
    assert isinstance(first, Exhausted)
    assert isinstance(second, Optimised)
    assert not second.cached


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (Made(b"no plan", MADE.origins, MADE.verdict), Invalid),
        (Made(MADE.plan[:-4], MADE.origins, MADE.verdict), Invalid),
        (Made(MADE.plan, MADE.origins, None), Internal),
    ],
)
async def test_what_is_no_sound_and_compared_plan_is_neither_kept_nor_uploaded(
    made: Made, error: type[Exception]
) -> None:
    fakes = Fakes(made)
    with pytest.raises(error):
        await fakes.optimise()
    assert not fakes.kept
    assert not fakes.uploads


async def test_another_tenants_model_is_not_there_though_its_plan_is_kept() -> None:
    fakes = Fakes(MADE)
    await fakes.optimise()
    with pytest.raises(NotFound):
        await fakes.optimise("other")


async def test_explaining_keeps_nothing_but_uses_what_is_kept() -> None:
    fakes = Fakes(MADE, MADE)
    told = await fakes.optimiser.explain("acme", MODEL, None, BATCH)
    assert told.operators == {"exp": 1}
    assert not fakes.kept
    await fakes.optimise()
    assert fakes.makes == []
    assert await fakes.optimiser.explain("acme", MODEL, None, BATCH) == told
    by_plan = await fakes.optimiser.explain("acme", None, BlobRef.of(MADE.plan), {})
    assert by_plan.origins is None
    assert by_plan.steps == told.steps


async def test_other_sizes_than_the_smallest_are_worked_out_anew() -> None:
    fakes = Fakes(MADE, MADE)
    await fakes.optimise()
    told = await fakes.optimiser.explain("acme", MODEL, None, BATCH, {"n": 3})
    # What is kept of the model before merging is for the smallest sizes.
    assert fakes.makes == []
    assert fakes.sizes == [{}, {"n": 3}]
    by_plan = await fakes.optimiser.explain("acme", None, BlobRef.of(MADE.plan), {}, {"n": 3})
    assert [each.steps[0].calculations for each in (told, by_plan)] == [24, 24]
    with pytest.raises(Invalid, match="'n': 5 is not in 1 to 4"):
        await fakes.optimiser.explain("acme", None, BlobRef.of(MADE.plan), {}, {"n": 5})


async def test_plans_of_the_cache_that_calls_hold_are_bounded() -> None:
    fakes = Fakes(MADE, budget=1)
    await fakes.optimise()
    fakes.uploading.clear()
    first = asyncio.create_task(fakes.optimise())
    await eventually(lambda: len(fakes.uploads) == 2)
    for call in (
        fakes.optimise(),
        fakes.optimiser.explain("acme", MODEL, None, BATCH),
        fakes.optimiser.explain("acme", None, BlobRef.of(MADE.plan), {}),
    ):
        with pytest.raises(Exhausted) as refused:
            await call
        assert refused.value.reason == "ENGINE_BUSY"
        assert refused.value.retry_after_s
    fakes.uploading.set()
    assert (await first).cached
    assert (await fakes.optimise()).cached


async def test_whoever_leaves_early_lets_go_of_worker_and_turn() -> None:
    fakes = Fakes(MADE, MADE)
    events = fakes.optimiser.optimise("acme", MODEL, BATCH, validate_only=False)
    assert isinstance(await anext(events), Stage)
    assert fakes.folders == 1
    await events.aclose()
    assert fakes.folders == 0
    assert isinstance(await fakes.optimise(), Optimised)


async def test_files_of_a_models_data_are_fetched_and_tell_plans_apart(tmp_path: Path) -> None:
    fakes = Fakes(MADE, MADE, folder=tmp_path)
    parts = {"w.bin": BlobRef.of(b"some"), "deep/v.bin": BlobRef.of(b"more")}
    model = Model(FILE, parts)
    assert not (await fakes.optimise(model=model)).cached
    assert sorted(fakes.downloads) == ["data/deep/v.bin", "data/w.bin", "model.onnx"]
    assert (await fakes.optimise(model=model)).cached
    other = Model(FILE, {**parts, "w.bin": BlobRef.of(b"others")})
    assert not (await fakes.optimise(model=other)).cached


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("lies in what is a file itself", {"taken/v": BlobRef.of(b"y")}),
        ("with its data .* are allowed", {"w": BlobRef(FILE.digest, 512 << 20)}),
    ],
)
async def test_files_of_data_that_cannot_be_are_refused(
    tmp_path: Path, text: str, data: dict[str, BlobRef]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "taken").write_bytes(b"")
    with pytest.raises(Invalid, match=text):
        await Fakes(MADE, folder=tmp_path).optimise(model=Model(FILE, data))
