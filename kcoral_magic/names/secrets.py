"""Which names look like secrets: they stay here unless ``-i`` sends them.

Text only, since a secret is text; and not the words of language models, whose tokens are none.
"""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(
    r"(^|_)(passw(or)?d|passwd|pwd|passphrase|secret|credentials?|(api|access|private|secret|auth|ssh)_?key|apikey|"
    r"bearer|(api|auth|access|refresh|session|hf|hub|github|gitlab|wandb|openai|gateway|bot)_?token|token)s?(_|$)",
    re.IGNORECASE,
)
_WORDS = re.compile(
    r"(^|_)(pad|eos|bos|unk|sep|cls|mask|special|image|stop|start|end|next|new|num|max|n)_tokens?(_|$)", re.IGNORECASE
)
# What issuers' own documents say their tokens begin with.
_VALUE = re.compile(
    r"^(sk-[\w-]{16,}|hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY)"
)


def looks_secret(name: str, value: Any) -> bool:
    """Whether ``name`` with ``value`` should not be sent unasked."""
    if type(value) not in (str, bytes) or not value:
        return False
    text = value if isinstance(value, str) else value.decode("latin-1")
    if _VALUE.match(text):
        return True
    return _NAME.search(name) is not None and _WORDS.search(name) is None and len(text) >= 6
