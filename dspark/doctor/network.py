"""Whether the Hugging Face Hub can be reached."""

from collections.abc import Mapping

from dspark.doctor.check import Check, Subject
from dspark.doctor.environment import offline, without_credentials

HUB = Subject("hub", "Hugging Face Hub")
ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 4.0
LOCAL_MODELS = "models on disk work without it"


def hub(environment: Mapping[str, str]) -> Check:
    """Asked for real, in the way a download would be: through the same endpoint and proxies."""
    endpoint = (environment.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    shown = without_credentials(endpoint)
    variable = offline(environment)
    if variable:
        return HUB.ok(f"not asked, because {variable} is set; {LOCAL_MODELS}")

    import httpx

    try:
        with httpx.Client(timeout=TIMEOUT_S) as client:
            answer = client.head(endpoint)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        return HUB.warn(f"{shown} is no address", "correct HF_ENDPOINT: it starts with https://", "unset HF_ENDPOINT")
    except httpx.TimeoutException:
        return HUB.warn(f"{shown} gave no answer in {TIMEOUT_S:g} s", f"check the network; {LOCAL_MODELS}")
    except Exception as error:  # proxies, certificates and resolvers each fail in a way of their own
        reason = " ".join(str(error).split()) or type(error).__name__
        todo = f"check the network, and the proxy variables if you use one; {LOCAL_MODELS}"
        return HUB.warn(f"{shown} cannot be reached ({without_credentials(reason)})", todo)
    if answer.status_code >= 500 or answer.status_code == 407:
        return HUB.warn(f"{shown} answers {answer.status_code}", f"try again later, or check the proxy; {LOCAL_MODELS}")
    return HUB.ok(f"{shown} answers")
