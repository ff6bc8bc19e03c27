from __future__ import annotations

import base64
from urllib.parse import quote

from mcpagent.core.redact import SECRETS


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
