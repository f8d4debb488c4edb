"""Which names look like secrets: they stay here unless ``-i`` sends them.

Text only, since a secret is text; and not the words of language models, whose tokens are none.
"""

from __future__ import annotations

import re
from typing import Any

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of snake_case and camelCase; digits part words too
_SECRET = frozenset("password passwd passphrase pwd secret secrets credential credentials bearer apikey".split())
_OF_A_KEY = frozenset("api access private secret auth ssh signing encryption".split())
_ISSUERS = frozenset(
    "openai anthropic hf huggingface hub github gitlab wandb aws azure gcp google mistral cohere groq replicate".split()
)
# What the tokens of a language model are called by.
_OF_A_MODEL = frozenset(
    "pad eos bos unk sep cls mask special image stop start end next new num max min n id ids type count limit len "
    "length vocab size index position separator class".split()
)
# What issuers' own documents say their tokens begin with.
_VALUE = re.compile(
    r"^(sk-[\w-]{16,}|hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY)"
)
_LEAST_CHARS = 6


def looks_secret(name: str, value: Any) -> bool:
    """Whether ``name`` with ``value`` should not be sent unasked."""
    if type(value) not in (str, bytes) or not value:
        return False
    text = value if isinstance(value, str) else value.decode("latin-1")
    if _VALUE.match(text):
        return True
    return len(text) >= _LEAST_CHARS and _is_called_secret([word.lower() for word in _WORD.findall(name)])


def _is_called_secret(words: list[str]) -> bool:
    found = {*words, *(word.removesuffix("s") for word in words)}
    if found & _SECRET:
        return True
    if found & {"key", "keys"} and found & (_OF_A_KEY | _ISSUERS):
        return True
    return bool(found & {"token", "tokens"}) and not found & _OF_A_MODEL
