"""The environment → settings."""

from __future__ import annotations

import pytest

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
