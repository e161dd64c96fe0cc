import json

from services.gateway.admin_key import main as admin_key


def test_admin_key_runs_in_the_environment_of_a_gateway(tmp_path, capsys):
    environ = {
        "ISTHMUS_GATEWAY_DATABASE_URL": f"sqlite:///{tmp_path}/g.db",
        "ISTHMUS_GATEWAY_PORT": "7400",
        "ISTHMUS_GATEWAY_UPSTREAMS": "deployer=x:1",
    }
    assert admin_key((f"--out={tmp_path}/admin.key",), environ) == 0
    text = (tmp_path / "admin.key").read_text().strip()
    assert text.startswith("isk_")
    said = capsys.readouterr()
    assert text not in said.out
    assert text not in said.err
    told = [json.loads(line) for line in said.err.splitlines()]
    assert [(line["audit"], line["action"], line["actor"]) for line in told] == [
        (True, "tenant.create", "admin-key"),
        (True, "key.create", "admin-key"),
    ]
    assert told[1]["resource"] == f"tenants/default/keys/{text.split('_')[1]}"
    assert admin_key((f"--out={tmp_path}/admin.key",), environ) == 0
    assert capsys.readouterr().err == ""  # nothing was made
    assert admin_key(("--tenant=Not An Id", f"--out={tmp_path}/other.key"), environ) == 1
    assert "tenant" in capsys.readouterr().err
    assert admin_key(("--outt=x",), environ) == 2
    assert "did you mean '--out'?" in capsys.readouterr().err
