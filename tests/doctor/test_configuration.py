"""The settings as the doctor reads them."""

from dspark.doctor import configuration
from dspark.doctor.port import Address


def test_the_server_is_looked_for_where_the_settings_put_it(monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_PORT", "8123")
    monkeypatch.setenv("MLX_DSPARK_API_KEY", "a-long-key")
    found = configuration.read()
    assert (found.address, found.key, found.key_place) == (Address(port=8123), "a-long-key", "MLX_DSPARK_API_KEY")
    assert configuration.check(found).status == "ok"


def test_a_key_from_a_file_is_named_by_what_names_the_file(monkeypatch, tmp_path):
    (tmp_path / "key").write_text("a-long-key\n")
    monkeypatch.setenv("MLX_DSPARK_API_KEY_FILE", str(tmp_path / "key"))
    found = configuration.read()
    assert (found.key, found.key_place) == ("a-long-key", "MLX_DSPARK_API_KEY_FILE")


def test_settings_that_cannot_be_meant_are_broken_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_PORT", "eighty")
    found = configuration.read()
    assert found.address == Address()
    check = configuration.check(found)
    assert (check.status, "MLX_DSPARK_PORT" in check.seen) == ("fail", True)


def test_any_free_port_is_no_place_to_look(monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_PORT", "0")
    assert configuration.read().address == Address()
