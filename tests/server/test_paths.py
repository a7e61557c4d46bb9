"""O4: what a request may name."""

import pytest

from dspark.errors import BadRequest
from dspark.server.paths import check_name

HERE, ELSEWHERE = "127.0.0.1", "192.168.1.20"


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(tmp_path / "shelf"))
    (tmp_path / "shelf" / "model").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "shelf"


@pytest.mark.parametrize("name", ["org/model", "demo", "qwen3-4b", "Model_1.0"])
def test_names_may_be_asked_for_from_anywhere(name):
    check_name(name, "model", ELSEWHERE)


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "file:///etc",
        "~root",
        "~/x",
        "a/b/c",
        ".hidden",
        "org/.hidden",
        "org/",
        "a\nb",
        "http://x/y",
        "0" * 256,
        f"/{'é' * 128}",
    ],
)
@pytest.mark.parametrize("client", [HERE, ELSEWHERE])
def test_what_is_neither_a_name_nor_a_full_path_is_refused(name, client):
    with pytest.raises(BadRequest) as refused:
        check_name(name, "model", client)
    assert refused.value.param == "model" and "etc" not in str(refused.value)


def test_a_folder_of_the_servers_own_is_not_taken_for_a_name(shelf):
    with pytest.raises(BadRequest):
        check_name("secret", "model", HERE)


def test_a_full_path_may_be_asked_for_from_this_machine(shelf):
    check_name(str(shelf.parent / "secret"), "model", HERE)
    with pytest.raises(BadRequest):
        check_name(f"{shelf}/../secret", "model", HERE)


def test_from_another_machine_a_path_must_be_inside_a_shelf_behind_its_links_too(shelf):
    check_name(str(shelf / "model"), "model", ELSEWHERE)
    (shelf / "out").symlink_to(shelf.parent / "secret")
    messages = set()
    for path in (shelf.parent / "secret", shelf / "out", shelf.parent / "not there", "/etc/passwd"):
        with pytest.raises(BadRequest) as refused:
            check_name(str(path), "model", ELSEWHERE)
        messages.add(str(refused.value))
    assert len(messages) == 1, "the refusal tells nothing of what is there"
