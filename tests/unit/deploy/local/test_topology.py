from pathlib import Path

import pytest

from deploy.local import topology
from deploy.local.__main__ import parser
from deploy.local.errors import StackError
from deploy.local.layout import Layout, Options


def by_name(options: Options, home: Path = Path("/h"), **environ: str) -> dict[str, topology.Process]:
    return {process.name: process for process in topology.services(Layout(home), options, environ)}


def everything(options: Options) -> list[topology.Process]:
    layout = Layout(Path("/h"))
    return [*topology.services(layout, options, {}), topology.etcd(Path("etcd"), layout, options)]


def test_workers_meet_on_ports_that_nothing_else_takes() -> None:
    # Not even a stack beside this one, which is moved by hundreds.
    taken = {endpoint.port % 100 for process in everything(Options()) for endpoint in process.endpoints}
    first, last = topology.GANGS
    assert not taken & {port % 100 for port in range(first, last + 1)}
    runner = by_name(Options(port_offset=100))["runner"].environment
    assert runner["ISTHMUS_SCHEDULER_RUNNER_FIRST_PORT"] == "7561"


@pytest.mark.parametrize("offset", range(100, 900, 100))
def test_stacks_that_are_moved_by_hundreds_stand_side_by_side(offset: int) -> None:
    def ports(options: Options) -> set[int]:
        layout, binary = Layout(Path("/h")), Path("x")
        monitors = [make(binary, layout, options, "") for make in (topology.prometheus, topology.grafana)]
        found = [*everything(options), *monitors]
        gangs = range(topology.GANGS[0], topology.GANGS[1] + 1)
        return {endpoint.port for each in found for endpoint in each.endpoints} | {
            topology.shifted(port, options) for port in gangs
        }

    assert not ports(Options()) & ports(Options(port_offset=offset))


def test_every_service_is_told_where_traces_go() -> None:
    found = by_name(Options(otlp_endpoint="127.0.0.1:4317"), ISTHMUS_ENGINE_OTLP_ENDPOINT="10.0.0.1:4317")
    told = {
        name: [value for key, value in process.environment.items() if key.endswith("_OTLP_ENDPOINT")]
        for name, process in found.items()
    }
    # The runner makes no spans.
    assert told == {name: [] if name == "runner" else ["127.0.0.1:4317"] for name in found}
    without = by_name(Options(), ISTHMUS_ENGINE_OTLP_ENDPOINT="10.0.0.1:4317")
    assert without["engine"].environment["ISTHMUS_ENGINE_OTLP_ENDPOINT"] == "10.0.0.1:4317"
    assert "ISTHMUS_GATEWAY_OTLP_ENDPOINT" not in without["gateway"].environment


def test_options_are_kept_and_those_of_an_older_stack_are_read(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.options_file.parent.mkdir(parents=True)
    options = Options(100, ("grafana",), True, "127.0.0.1:4317")
    layout.write_options(options)
    assert layout.read_options() == options
    layout.options_file.write_text('{"port_offset": 100, "without": [], "tls": false}')
    assert layout.read_options() == Options(100)


@pytest.mark.parametrize("text", ["", "here", "here:", ":4317", "here:http", "here:0", "here:65536"])
def test_an_endpoint_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["up", "--otlp-endpoint", text])
    assert "is not HOST:PORT" in capsys.readouterr().err


def test_the_ports_are_those_of_the_documentation() -> None:
    found = {
        name: [endpoint.port for endpoint in process.endpoints]
        for name, process in by_name(Options()).items()
    }
    assert found == {
        "deployer": [7410, 8410],
        "tunnel": [7405, 8405],
        "engine": [7420, 8420],
        "scheduler": [7430, 8430],
        "runner": [8431],
        "serving": [7450, 8450],
        "tuner": [7440, 8440],
        "simulator": [7460, 8460],
        "gateway": [7400, 7480, 8400],
    }
    etcd = topology.etcd(Path("etcd"), Layout(Path("/h")), Options())
    assert [endpoint.port for endpoint in etcd.endpoints] == [7379, 7378, 8379]


def test_what_is_left_out_takes_along_what_needs_it() -> None:
    everything = {"deployer", "tunnel", "engine", "scheduler", "runner"}
    everything |= {"serving", "tuner", "simulator", "gateway"}
    assert set(by_name(Options())) == everything
    assert everything - set(by_name(Options(without=("scheduler",)))) == {"scheduler", "runner"}
    assert everything - set(by_name(Options(without=("runner",)))) == {"runner"}
    assert everything - set(by_name(Options(without=("serving",)))) == {"serving", "tuner"}
    assert everything - set(by_name(Options(without=("tuner",)))) == {"tuner"}
    assert everything - set(by_name(Options(without=("simulator",)))) == {"simulator"}
    few = by_name(Options(without=("engine", "scheduler", "serving", "simulator")))
    assert set(few) == {"deployer", "tunnel", "gateway"}
    upstreams = few["gateway"].environment["ISTHMUS_GATEWAY_UPSTREAMS"]
    assert upstreams == "deployer=127.0.0.1:7410,tunnel=127.0.0.1:7405"


def test_the_tuner_measures_the_models_of_this_stacks_serving() -> None:
    found = by_name(Options(port_offset=100))
    assert found["tuner"].environment["ISTHMUS_TUNER_SERVING_TARGET"] == "127.0.0.1:7550"
    assert found["serving"].environment["ISTHMUS_SERVING_PORT"] == "7550"
    for name in ("serving", "tuner"):
        process = found[name]
        assert process.environment[f"ISTHMUS_{name.upper()}_DEPLOYER_TARGET"] == "127.0.0.1:7510"
        assert process.environment[f"ISTHMUS_{name.upper()}_DATA_DIR"] == f"/h/{name}"
        assert process.behind_the_door


def test_what_devices_ask_goes_to_this_stacks_serving() -> None:
    found = by_name(Options(port_offset=100))["tunnel"].environment
    assert found["ISTHMUS_TUNNEL_SERVING_TARGET"] == "127.0.0.1:7550"
    without = by_name(Options(without=("serving",)))["tunnel"].environment
    assert without["ISTHMUS_TUNNEL_SERVING_TARGET"] == ""


def test_the_deployer_alone_calls_the_simulator() -> None:
    found = by_name(Options(port_offset=100))
    assert found["deployer"].environment["ISTHMUS_DEPLOYER_SIMULATOR_TARGET"] == "127.0.0.1:7560"
    simulator = found["simulator"]
    assert simulator.environment["ISTHMUS_SIMULATOR_DEPLOYER_TARGET"] == "127.0.0.1:7510"
    assert "simulator" not in found["gateway"].environment["ISTHMUS_GATEWAY_UPSTREAMS"]
    without = by_name(Options(without=("simulator",)))["deployer"].environment
    assert without["ISTHMUS_DEPLOYER_SIMULATOR_TARGET"] == ""


def test_etcd_is_where_the_scheduler_looks_for_it() -> None:
    options = Options(port_offset=100)
    etcd = topology.etcd(Path("/bin/etcd"), Layout(Path("/h")), options)
    scheduler = by_name(options)["scheduler"]
    assert etcd.endpoints[0].address == "http://127.0.0.1:7479"
    assert scheduler.environment["ISTHMUS_SCHEDULER_ETCD_ENDPOINTS"] == "127.0.0.1:7479"
    # Nobody off this machine reaches it: it asks nobody who they are.
    urls = [word for word in etcd.command if "://" in word]
    assert urls
    assert all("://127.0.0.1:" in url for url in urls)


def test_an_offset_moves_every_port_and_what_points_at_it() -> None:
    still, moved = by_name(Options()), by_name(Options(port_offset=100))
    for name, process in moved.items():
        ports = [endpoint.port for endpoint in process.endpoints]
        assert ports == [endpoint.port + 100 for endpoint in still[name].endpoints]
        assert not any(
            f":{endpoint.port}" in value
            for value in process.environment.values()
            for endpoint in still[name].endpoints
        )
    assert moved["gateway"].environment["ISTHMUS_GATEWAY_UPSTREAMS"] == (
        "deployer=127.0.0.1:7510,tunnel=127.0.0.1:7505,engine=127.0.0.1:7520,scheduler=127.0.0.1:7530,"
        "serving=127.0.0.1:7550,tuner=127.0.0.1:7540"
    )


@pytest.mark.parametrize("offset", [-6355, 57076])
def test_an_offset_that_moves_a_port_out_of_range_is_refused(offset: int) -> None:
    with pytest.raises(StackError, match="the offset from -6354 to 57075"):
        everything(Options(port_offset=offset))
    assert everything(Options(port_offset=offset + (1 if offset < 0 else -1)))


def test_settings_of_the_caller_reach_their_service_and_no_other() -> None:
    found = by_name(Options(), ISTHMUS_GATEWAY_LOG_LEVEL="DEBUG", ISTHMUS_GATEWAY_PORT="1", OTHER="x")
    assert found["gateway"].environment["ISTHMUS_GATEWAY_LOG_LEVEL"] == "DEBUG"
    # What the stack decides wins: others are told these ports.
    assert found["gateway"].environment["ISTHMUS_GATEWAY_PORT"] == "7400"
    assert not any("LOG_LEVEL" in key for key in found["deployer"].environment)
    assert "OTHER" not in found["gateway"].environment


def test_settings_of_the_runner_are_none_of_the_schedulers() -> None:
    found = by_name(
        Options(), ISTHMUS_SCHEDULER_RUNNER_LOG_LEVEL="DEBUG", ISTHMUS_SCHEDULER_LOG_LEVEL="ERROR"
    )
    levels = {
        name: {key: value for key, value in found[name].environment.items() if key.endswith("LOG_LEVEL")}
        for name in ("scheduler", "runner")
    }
    assert levels == {
        "scheduler": {"ISTHMUS_SCHEDULER_LOG_LEVEL": "ERROR"},
        "runner": {"ISTHMUS_SCHEDULER_RUNNER_LOG_LEVEL": "DEBUG"},
    }


def test_tls_is_the_gateways_alone() -> None:
    found = by_name(Options(tls=True))
    assert found["gateway"].endpoints[0].scheme == "grpcs"
    assert [name for name, process in found.items() if any("TLS" in key for key in process.environment)] == [
        "gateway"
    ]


@pytest.mark.parametrize(
    ("name", "command"),
    [("grafana", ("/opt/g/bin/grafana", "server")), ("grafana-server", ("/opt/g/bin/grafana-server",))],
)
def test_grafana_is_started_as_its_binary_wants(name: str, command: tuple[str, ...]) -> None:
    process = topology.grafana(Path("/opt/g/bin") / name, Layout(Path("/h")), Options(port_offset=5), "d")
    assert process.command[: len(command)] == command
    assert process.environment["GF_SERVER_HTTP_PORT"] == "7496"
    assert process.environment["ISTHMUS_PROMETHEUS_URL"] == "http://127.0.0.1:7495"
