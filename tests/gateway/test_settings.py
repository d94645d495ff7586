"""The environment → settings."""

from __future__ import annotations

import sys

import pytest

from gateway.fetch.guard import Guard, HostRule
from gateway.settings import Settings, SettingsError, describe_settings, load_settings


def test_defaults_of_the_contract() -> None:
    """Every deployment meets these."""
    settings = Settings()
    assert settings.triton_url == "localhost:8001"
    assert settings.default_model == "ensemble_model"
    assert (settings.max_body_bytes, settings.max_file_bytes) == (64 * 2**20, 20 * 2**20)
    assert (settings.max_images, settings.max_pixels, settings.request_timeout_s) == (256, 64_000_000, 10)
    assert settings.max_in_flight_images >= settings.max_images


def test_random_weights_answer_only_where_the_operator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by default; a variable turns it on."""
    assert not Settings().allow_random_weights
    monkeypatch.setenv("TIDEGATE_ALLOW_RANDOM_WEIGHTS", "true")
    assert load_settings().allow_random_weights


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable with the prefix changes a setting."""
    monkeypatch.setenv("TIDEGATE_MAX_IMAGES", "7")
    assert load_settings().max_images == 7


def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which variable, which value, and what would do."""
    monkeypatch.setenv("TIDEGATE_PORT", "many")
    monkeypatch.setenv("TIDEGATE_TRITON_URL", "http://triton")
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert "TIDEGATE_PORT='many'" in str(error.value)
    assert "TIDEGATE_TRITON_URL='http://triton': write host:port" in str(error.value)


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt limit is not dropped without a word."""
    monkeypatch.setenv("TIDEGATE_MAX_IMAGE", "7")
    with pytest.raises(SettingsError, match="did you mean TIDEGATE_MAX_IMAGES"):
        load_settings()


def test_every_setting_is_described() -> None:
    """The help lists each variable with a sentence."""
    text = describe_settings()
    for name, field in Settings.model_fields.items():
        assert f"TIDEGATE_{name.upper()}" in text
        assert field.description


def test_what_may_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing by default; hosts and networks are checked at the start, and explained."""
    assert not Settings().allow_urls
    assert Settings().guard == Guard()
    monkeypatch.setenv("TIDEGATE_ALLOW_URLS", "true")
    monkeypatch.setenv("TIDEGATE_URL_ALLOWED_HOSTS", "*.example.com,store:9000")
    monkeypatch.setenv("TIDEGATE_URL_ALLOWED_NETWORKS", "10.1.2.0/24")
    guard = load_settings().guard
    assert guard.hosts == (HostRule("*.example.com"), HostRule("store", 9000))
    assert [str(network) for network in guard.networks] == ["10.1.2.0/24"]
    monkeypatch.setenv("TIDEGATE_URL_ALLOWED_HOSTS", "https://example.com/")
    monkeypatch.setenv("TIDEGATE_URL_ALLOWED_NETWORKS", "10.1.2.3/24")
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert "'https://example.com/' is not a host: write names such as images.example.com" in str(error.value)
    assert "10.1.2.3/24 has host bits set: write networks such as 10.1.2.0/24" in str(error.value)


def test_fetching_needs_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the start says what to install."""
    monkeypatch.setitem(sys.modules, "gateway.fetch.fetcher", None)
    monkeypatch.setenv("TIDEGATE_ALLOW_URLS", "true")
    with pytest.raises(SettingsError, match=r"pip install 'tidegate\[urls\]'"):
        load_settings()


def test_anybody_may_call_by_default() -> None:
    """No keys, no rates, no proxies, no origins, no TLS."""
    settings = Settings()
    assert (settings.api_keys_file, settings.rate_limit, settings.rate_storage) == (None, "", None)
    assert (settings.proxies, settings.cors_origins, settings.url) == ((), "", "http://127.0.0.1:8080")
    assert (settings.docs, settings.metrics, settings.metrics_port) == (True, True, None)


@pytest.mark.parametrize("name", ["API_KEYS_FILE", "RATE_LIMIT", "RATE_STORAGE", "METRICS_PORT", "TLS_CERT_FILE"])
def test_empty_is_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose and Kubernetes leave a variable that nobody filled in."""
    monkeypatch.setenv(f"TIDEGATE_{name}", "")
    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"API_KEYS_FILE": "/nowhere/keys.json"}, "No such file or directory; `tidegate keys add NAME` makes"),
        ({"RATE_LIMIT": "lots"}, "write limits such as 600/minute"),
        ({"RATE_LIMIT": "6/minute", "WORKERS": "2"}, "each worker would count for itself"),
        ({"RATE_STORAGE": "memcached://user:hush@host"}, "write the address of a Redis"),
        ({"TRUSTED_PROXIES": "10.0.0.1/8"}, "has host bits set"),
        ({"TRUSTED_PROXIES": "everyone"}, "write networks such as"),
        ({"CORS_ORIGINS": "app.example.com"}, "'app.example.com' is not an origin"),
        ({"CORS_ORIGINS": "https://app.example.com/"}, "is not an origin"),
        ({"METRICS_PORT": "8080"}, "the gateway's own port"),
        ({"TLS_CERT_FILE": "/nowhere/cert.pem"}, "No such file or directory"),
        ({"TLS_CERT_FILE": __file__}, "are not a certificate and its key"),
        ({"TLS_KEY_FILE": __file__}, "need TIDEGATE_TLS_CERT_FILE"),
        ({"TRITON_TLS_CERT_FILE": __file__}, "go together"),
        ({"TRITON_TLS_CERT_FILE": __file__, "TRITON_TLS_KEY_FILE": __file__}, "which turns TLS on"),
    ],
)
def test_who_may_call_is_checked_at_the_start(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence for each mistake, and no password in it."""
    for name, value in variables.items():
        monkeypatch.setenv(f"TIDEGATE_{name}", value)
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert words in str(error.value)
    assert "hush" not in str(error.value)


def test_several_workers_share_a_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its password is in no text of the settings."""
    monkeypatch.setenv("TIDEGATE_RATE_LIMIT", "10/second; 600/minute")
    monkeypatch.setenv("TIDEGATE_RATE_STORAGE", "rediss://user:hush@redis.example.com:6379/0?health_check_interval=5")
    monkeypatch.setenv("TIDEGATE_WORKERS", "2")
    settings = load_settings()
    assert settings.rate_storage is not None
    assert "hush" not in repr(settings)


def test_rates_need_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the start says what to install."""
    monkeypatch.setitem(sys.modules, "gateway.access.storage", None)
    monkeypatch.setenv("TIDEGATE_RATE_LIMIT", "600/minute")
    with pytest.raises(SettingsError, match=r"pip install 'tidegate\[rates\]'"):
        load_settings()


def test_several_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints with commas between them, spaces or not; each is checked, and none may come twice."""
    monkeypatch.setenv("TIDEGATE_TRITON_URL", "gpu1:8001, dns:///gpus.example:8001,[::1]:8001")
    assert load_settings().triton_endpoints == ["gpu1:8001", "dns:///gpus.example:8001", "[::1]:8001"]
    wrongs = {"gpu1:8001,gpu2": "several with commas", "gpu1:8001,gpu1:8001": "twice", ",": "host:port"}
    for wrong, words in wrongs.items():
        monkeypatch.setenv("TIDEGATE_TRITON_URL", wrong)
        with pytest.raises(SettingsError, match=words):
            load_settings()
