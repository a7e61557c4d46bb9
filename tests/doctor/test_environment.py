"""Environment variables: shown where that helps, never with a secret in them."""

from dspark.doctor import environment


def found(**variables: str):
    return {check.title: check for check in environment.variables(variables)}


def test_variables(tmp_path):
    library = tmp_path / "there.so"
    library.touch()
    checks = found(
        PATH="/bin",
        HF_HOME="/models",
        HF_ENDPOINT="https://user:word@hub.example",
        HF_HUB_OFFLINE="",
        MLX_DSPARK_TRUST_REMOTE_CODE="1",
        LD_PRELOAD=f"{library}:{tmp_path}/gone.so",
        SSL_CERT_FILE=f"{tmp_path}/gone.pem",
        OPENBLAS_NUM_THREADS="1",
    )
    assert not {"PATH", "HF_HUB_OFFLINE"} & checks.keys()
    assert checks["HF_HOME"].seen == "/models"
    assert checks["HF_HOME"].id == "environment.HF_HOME"
    assert checks["HF_ENDPOINT"].seen == "https://hub.example"
    assert checks["MLX_DSPARK_TRUST_REMOTE_CODE"].status == "warn"
    assert checks["LD_PRELOAD"].status == checks["SSL_CERT_FILE"].status == "warn"
    assert f"{tmp_path}/gone.so is missing" in checks["LD_PRELOAD"].seen
    assert checks["OPENBLAS_NUM_THREADS"].seen == "1"


def test_secrets_are_named_and_not_shown():
    checks = found(HF_TOKEN="hf_secret", MLX_DSPARK_API_KEY="sk-secret", https_proxy="http://me:secret@proxy:3128")
    assert checks["HF_TOKEN"].seen == checks["MLX_DSPARK_API_KEY"].seen == "set"
    assert checks["https_proxy"].seen == "http://proxy:3128"
    assert found(HTTPS_PROXY="me:secret/@x@proxy:3128")["HTTPS_PROXY"].seen == "proxy:3128"
    assert "secret" not in str(checks)


def test_a_token_that_is_not_set_is_told():
    assert found()["HF_TOKEN"].seen == "not set"


def test_trust_switched_off_is_no_warning():
    assert found(MLX_DSPARK_TRUST_REMOTE_CODE="0")["MLX_DSPARK_TRUST_REMOTE_CODE"].status == "ok"


def test_offline():
    assert environment.offline({"HF_HUB_OFFLINE": "1"}) == "HF_HUB_OFFLINE"
    assert environment.offline({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "yes"}) == "TRANSFORMERS_OFFLINE"
    assert environment.offline({"HF_HUB_OFFLINE": "0"}) is None
