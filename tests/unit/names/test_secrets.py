"""Which names stay here unasked: those that look like secrets, and values that issuers mark as such."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

from typing import Any

import pytest

from kcoral_magic.names.secrets import looks_secret

TEXT = "correct horse battery"


@pytest.mark.parametrize(
    "name",
    "password PASSWORD db_password passwd pwd my_pwd passphrase secret client_secret SECRET_KEY secrets api_key API_KEY "
    "openai_api_key apikey access_key AWS_SECRET_ACCESS_KEY private_key auth_key ssh_key bearer token TOKEN tokens "
    "hf_token HF_TOKEN github_token api_token access_token refresh_token session_token bot_token wandb_token "
    "KCORAL_GATEWAY_TOKEN my_token credentials credential AWS_CREDENTIALS passwords api_keys _token token_ apiKey accessToken".split(),
)
def test_names_of_secrets_are_kept_here(name: str) -> None:
    assert looks_secret(name, TEXT)
    assert looks_secret(name, TEXT.encode())


@pytest.mark.parametrize(
    "name",
    "x text prompt key keys keyboard monkey passage compass tokenizer tokenize tokenized detokenized pad_token eos_token "
    "bos_token unk_token sep_token cls_token mask_token special_tokens image_token stop_token stop_tokens start_token "
    "max_tokens num_tokens n_tokens next_token new_tokens secretary author authority public_key primary_key path "
    "passed bypass username url model_name key_name forward_passes".split(),
)
def test_other_names_are_not(name: str) -> None:
    assert not looks_secret(name, TEXT)


@pytest.mark.parametrize(
    "value",
    [
        "sk-" + "a1" * 16,
        "sk-proj-" + "a_-" * 10,
        "hf_" + "aB3" * 10,
        "ghp_" + "a1" * 18,
        "gho_" + "a1" * 18,
        "github_pat_" + "a1_" * 10,
        "glpat-" + "a-1" * 8,
        "xoxb-1234567890-abc",
        "AKIA" + "ABCD1234" * 2,
        "AIza" + "a_-" * 12,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.SflKxw",
        "-----BEGIN PRIVATE KEY-----\nMII",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3B",
        b"-----BEGIN RSA PRIVATE KEY-----",
    ],
    ids=lambda value: str(value)[:14],
)
def test_values_that_an_issuer_has_marked_are_kept_here_whatever_their_name(value: Any) -> None:
    assert looks_secret("x", value)
    assert looks_secret("eos_token", value)


@pytest.mark.parametrize(
    "value",
    ["sk-short", "skip-this-and-that-and-more", "hf_short", "AKIAlowercase000000", "eyJ", "-----BEGIN PUBLIC KEY-----", "a sk-" + "a" * 30, "", b""],
)  # fmt: skip
def test_other_values_are_not(value: Any) -> None:
    assert not looks_secret("x", value)


@pytest.mark.parametrize("value", [None, 5, 1.5, True, ["hunter22"], {"password": TEXT}, object(), "", b"", "short"])
def test_a_secret_is_text_of_some_length(value: Any) -> None:
    """An empty token, a number of tokens and a password form are none."""
    assert not looks_secret("password", value)


@pytest.mark.parametrize("name", ["dbPassword", "clientSecret", "myToken"])
def test_names_in_camel_case_are_kept_here_too(name: str) -> None:
    assert looks_secret(name, TEXT)


@pytest.mark.parametrize("name", ["password2", "token1", "OPENAI_KEY", "HF_KEY"])
def test_numbered_names_and_an_issuers_key_are_kept_here_too(name: str) -> None:
    assert looks_secret(name, TEXT)
