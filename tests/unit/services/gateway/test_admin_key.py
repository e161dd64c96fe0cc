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
    assert text not in capsys.readouterr().out
    assert admin_key(("--tenant=Not An Id", f"--out={tmp_path}/other.key"), environ) == 1
    assert "tenant" in capsys.readouterr().err
    assert admin_key(("--outt=x",), environ) == 2
    assert "did you mean '--out'?" in capsys.readouterr().err
