from __future__ import annotations

import base64
from urllib.parse import quote

from mcpagent.core.redact import SECRETS, written_secrets


def test_secrets_are_found_by_the_names_of_their_variables() -> None:
    variables = {
        "FMP_API_KEY": "key-11111111",
        "APIKEY": "key-22222222",
        "GITHUB_TOKEN": "tok-33333333",
        "X-Api-Key": "key-44444444",
        "Authorization": "Bearer tok-55555555",
        "Accept": "application/json",
        "KEYBOARD": "us-international",
        "TOKENIZER": "sentencepiece",
        "MONKEY": "long enough",
        "PWD": "/home/somebody/project",
        "OLDPWD": "/home/somebody",
        "DB_PWD": "pwd-77777777",
    }
    SECRETS.learn_named(variables)
    secret = {name for name, value in variables.items() if SECRETS.text(value) != value}
    assert secret == {"FMP_API_KEY", "APIKEY", "GITHUB_TOKEN", "X-Api-Key", "Authorization", "DB_PWD"}
    assert SECRETS.text("tok-55555555") == "[Authorization]"


def test_every_text_of_a_value_loses_its_secrets_and_nothing_else() -> None:
    value = {"longsecret": ["x longsecret-longer y", 1, None, True, {"k": "longsecretlongsecret"}], "n": 2.5}
    assert SECRETS.value(value) is value
    SECRETS.add("longsecret", "A")
    SECRETS.add("longsecret-longer", "B")
    assert SECRETS.value(value) == {"[A]": ["x [B] y", 1, None, True, {"k": "[A][A]"}], "n": 2.5}


def test_a_secret_is_found_in_the_forms_in_which_services_repeat_it() -> None:
    secret = "p@ss/word+1234"
    SECRETS.learn_named({"DB_PASSWORD": secret})
    encoded = base64.b64encode(secret.encode()).decode()
    text = f"user:{secret} url={quote(secret, safe='')} basic={encoded}"
    assert SECRETS.text(text) == "user:[DB_PASSWORD] url=[DB_PASSWORD] basic=[DB_PASSWORD]"


def test_a_strangers_secrets_are_told_by_their_form_and_by_the_name_in_front() -> None:
    secrets = {
        "my key is sk-proj-AbC123deF456ghI789jkl, please": "sk-proj-AbC123deF456ghI789jkl",
        "use ghp_abcdefghijklmnopqrstuvwxyz0123": "ghp_abcdefghijklmnopqrstuvwxyz0123",
        "API_KEY=abc123def456 make": "abc123def456",
        '{"client_secret": "q7w8e9r0t1"}': "q7w8e9r0t1",
        "password: hunter2!": "hunter2!",
        "Authorization: Bearer abcdef123456": "abcdef123456",
        "postgres://bob:s3cretpw@db.local/x": "s3cretpw",
        "https://a.io/x?token=abc12345xyz": "abc12345xyz",
    }
    for text, secret in secrets.items():
        assert secret in {value for _, value in written_secrets(["before", {"text": text}])}, text
    plain = (
        "the primary key: customer_id",
        "key: user:42",
        "token: Berlin",
        "at 10:00 pass: 5",
        "order A-1207",
    )
    assert [found for text in plain for found in written_secrets(text)] == []
    assert dict(written_secrets({"key": "user:42", "password": "Berlin1"})) == {"password": "Berlin1"}
