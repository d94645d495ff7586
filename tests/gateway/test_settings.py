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
