"""Where keys are kept, and the sessions that stand for one."""

import json
import os
import threading

import pytest
from wires import eventually

from dspark.errors import StorageError, UsageError
from dspark.server.keys import SubKeys
from dspark.server.sessions import LONG_SECONDS, SHORT_SECONDS, Sessions


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "keys.json"


def test_a_sub_key_is_kept_as_a_hash_for_the_owner_alone(path):
    key = SubKeys(path).create("laptop")
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["keys.json"]
    assert SubKeys(path).find(key) == "laptop"


def test_keys_made_and_revoked_elsewhere_count_at_once(path):
    ours, theirs = SubKeys(path), SubKeys(path)
    key = theirs.create("phone")
    assert (ours.find(key), ours.names()) == ("phone", ["phone"])
    theirs.revoke("phone")
    assert (ours.find(key), ours.names()) == (None, [])


def test_two_writers_lose_nothing(path):
    def create(number):
        SubKeys(path).create(f"key-{number}")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(SubKeys(path).names()) == 16


def test_names_are_plain_and_taken_once(path):
    keys = SubKeys(path)
    keys.create("one")
    for name in ("one", "", "a b", "../x", "-x", "x" * 65, "x\n"):
        with pytest.raises(UsageError):
            keys.create(name)
    with pytest.raises(UsageError, match="no key called two"):
        keys.revoke("two")
    assert keys.names() == ["one"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": 1}', '{"keys": [{"name": "a", "sha256": "x"}]}', "[" * 9999]
)
def test_a_broken_file_is_said_at_the_start_and_opens_nothing_later(path, content, caplog):
    keys = SubKeys(path)
    key = keys.create("one")
    assert keys.find(key) == "one"
    path.write_text(content)
    assert keys.find(key) is None
    assert "keys.json" in caplog.text
    with pytest.raises(StorageError, match="not a file of API keys"):
        SubKeys(path)
    with pytest.raises(StorageError, match="not a file of API keys"):
        keys.create("two")
    assert path.read_text() == content


def test_what_is_no_file_is_said_and_not_waited_for(path, caplog):
    keys = SubKeys(path)
    key = keys.create("one")
    path.unlink()
    os.mkfifo(path)
    found = []
    threading.Thread(target=lambda: found.append(keys.find(key)), daemon=True).start()
    assert eventually(lambda: found == [None])
    assert "not a file of API keys" in caplog.text
    with pytest.raises(StorageError, match="move it away"):
        SubKeys(path)


def test_a_revoked_key_stays_revoked_when_the_disk_refuses(path):
    keys = SubKeys(path)
    keys.create("one")
    before = json.loads(path.read_text())
    path.parent.chmod(0o500)
    try:
        if not writable(path.parent):
            with pytest.raises(StorageError, match="MLX_DSPARK_HOME"):
                keys.create("two")
    finally:
        path.parent.chmod(0o700)
    assert json.loads(path.read_text()) == before


def writable(folder):
    """Root writes everywhere."""
    try:
        (folder / "probe").touch()
    except OSError:
        return False
    (folder / "probe").unlink()
    return True


class Clock:
    now = 1e9

    def __call__(self):
        return self.now


def value(cookie):
    return cookie.partition(";")[0]


@pytest.mark.parametrize(("remember", "lifetime_s"), [(False, SHORT_SECONDS), (True, LONG_SECONDS)])
def test_a_session_runs_out(remember, lifetime_s):
    clock = Clock()
    sessions = Sessions("secret-key", clock)
    cookie = sessions.cookie(remember)
    assert {f"Max-Age={lifetime_s}", "HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert "secret-key" not in cookie
    clock.now += lifetime_s - 1
    assert sessions.holds(value(cookie))
    clock.now += 1
    assert not sessions.holds(value(cookie))


def test_a_session_cannot_be_forged():
    clock = Clock()
    sessions = Sessions("secret-key", clock)
    name, token = value(sessions.cookie()).split("=")
    expiry, nonce, signature = token.split(".")
    forged = [
        f"{int(expiry) + 1}.{nonce}.{signature}",
        f"{expiry}.{nonce[::-1]}.{signature}",
        f"{expiry}.{nonce}.{'0' * 64}",
    ]
    for token in forged:
        assert not sessions.holds(f"{name}={token}")
    assert not Sessions("other-key", clock).holds(value(sessions.cookie()))
    assert not sessions.holds(value(Sessions.ending()))
    assert not sessions.holds("")
