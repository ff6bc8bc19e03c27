"""Keeping secrets out of what a model reads, and out of what is stored or printed.

A secret is found by its value, in the encodings in which software repeats one, and replaced by `[NAME]`.
`SECRETS` are those of this process: whoever reads one (a variable of an `mcp.json`, a header, the key of a
service) lets it learn the value, and whatever leaves the process (a result on its way to the model, a file, a
log, the terminal) asks it.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from mcpagent.core.values import is_json_array, is_json_object

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

# PWD and OLDPWD alone are the shell's working folders, which stand in every path.
_SECRET_NAME = re.compile(
    r"^(?-i:(?!(?:OLD)?PWD$))(?:.*[_.-])?(?:API_?)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|PAT|"
    r"CREDENTIALS?|AUTH|AUTHORIZATION|COOKIE|DSN)$",
    re.IGNORECASE,
)
# Shorter values are not treated as secrets, and replacing them would spoil ordinary text. One whose name
# says that it is a secret may have the first length; below it, it is found next to its name only.
_SHORTEST_NAMED, _SHORTEST = 6, 8
_BESIDE_NAME = 3
_LONG = 1000  # a longer value is looked for in pieces of a fifth of it: it may be said in part
_HELD_BYTES = 2**16  # of a line without an end; no encoding of a value is longer
_LINE = 16  # characters of a line of a value of many lines, such as a PEM file, that counts by itself
# What configures a server and is found in ordinary text: not a secret, whichever variable it came from.
_ORDINARY = re.compile(
    r"[a-z]{1,14}|[A-Z]{1,14}|[A-Z][a-z]{1,13}"  # one word
    r"|[-+]?[\d.,:/_ +-]{1,15}[TZ]?|v?\d+(\.\w{1,8})*"  # numbers, dates, addresses, versions
    r"|[A-Z][a-z]+/[A-Z][A-Za-z_]+|[a-z]{2}_[A-Z]{2}([.@][\w-]+)?|[a-z]{2}(-[a-z]+)+-\d"  # places
    r"|(localhost|([a-z][a-z-]{0,20}\d{0,3}\.)+[a-z]{2,})(:\d+)?"  # hosts
    r"|(application|text|image|audio|multipart)/[\w.+*-]+(;.*)?"  # media types
)
_PATH = re.compile(r"(?:~|\.{1,2})?/[\w./@ :~-]*|[A-Za-z]:\\[\w.\\ -]*")
_RELATIVE_PATH = re.compile(r"[\w@ ~-]*[./:][\w./@ :~-]*")
_PATH_NAME = re.compile(r"(?:PATH|DIR|DIRECTORY|FOLDER|FILE|HOME|ROOT|CWD)S?$", re.IGNORECASE)
_UNIVERSAL = {"true", "false", "none", "null", "enabled", "disabled", "required", "optional", "default"}
_PAIR = re.compile(r"(?<![\w.-])([\w.-]{1,64})=([^\s;,&]+)")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.:-]+")

# Encodings and quoting of every depth put these between the characters of a value, and wrapping breaks it.
_DROPPED = b" \t\r\n\x0b\x0c\\\"'"
_LOWER = bytes(range(256)).lower()
_ESCAPED_BREAK = re.compile(rb"\\[nr]")
_MANY = 10_000  # matches in one text
_BASE64_CHARS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


class _Form(NamedTuple):
    """One way to write a secret. `before` and `after` are how many characters around it hold bits of it."""

    name: str
    before: int = 0
    after: int = 0


class Secrets:
    """The secrets of this process and how often each was found. Safe to use from several threads."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._forms: dict[bytes, _Form] = {}
        self._matcher: BytesAhoCorasick | None = None
        self._ordered: list[_Form] = []
        self._lock = threading.Lock()
        self.met: Counter[tuple[str, str]] = Counter()  # by name of the secret and where it stood

    def learn(self, values: Mapping[str, str]) -> None:
        """Take the values of a server's `env` or `headers`, or of variables, by their names: each is a secret
        unless it is ordinary text (`docs/security.md` has the rule), and so are parts of it."""
        for name, value in values.items():
            for part_name, part in _parts(name, value):
                self._take(part_name, part)

    def learn_named(self, values: Mapping[str, str]) -> None:
        """Take those whose name says that they are secrets."""
        self.learn({name: value for name, value in values.items() if _SECRET_NAME.search(name)})

    def learn_url(self, name: str, url: str) -> None:
        """Take the user parts and query values of a URL."""
        for part_name, part in _url_parts(name, url):
            self._take(part_name, part)

    def add(self, value: str, name: str) -> None:
        """Take a value that is a secret whatever it looks like."""
        name = _NOT_A_NAME.sub("_", name)
        with self._lock:
            if value in self._values:
                return
            self._values.add(value)
            for form, before, after in _forms(value):
                self._forms.setdefault(form, _Form(name, before, after))
            self._matcher = None

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._forms.clear()
            self._matcher = None
            self.met.clear()

    def text(self, text: str, *, where: str | None = None, mark: str = "[{}]") -> str:
        """`text` with the name of a secret, as `mark` shows it, wherever one stood. `where` counts it."""
        if not self._forms:
            return text
        data = text.encode("utf-8", "surrogatepass")
        clean = self.data(data, where=where, mark=mark)
        return text if clean is data else clean.decode("utf-8", "surrogatepass")

    def data(self, data: bytes, *, where: str | None = None, mark: str = "[{}]") -> bytes:
        """`text` for UTF-8 bytes. Valid JSON stays valid JSON, unless a number was a secret."""
        if not self._forms:
            return data
        matcher = self._compiled()
        squeezed = _squeezed(data)
        matches = matcher.find_matches_as_indexes(squeezed)
        if not matches:
            return data
        if len(matches) < _MANY:
            matches = matcher.find_matches_as_indexes(squeezed, overlapping=True)
        spans = self._spans(data, matches)
        if where is not None:
            self.met.update((form.name, where) for _, _, form in spans)
        pieces: list[bytes] = []
        done = 0
        for start, end, form in spans:
            pieces += [data[done:start], mark.format(form.name).encode()]
            done = end
        return b"".join([*pieces, data[done:]])

    def value(self, value: Any, *, where: str | None = None) -> Any:
        """`text` for a JSON value: its texts, the names of its fields, and its numbers."""
        if isinstance(value, str):
            return self.text(value, where=where)
        if not self._forms or not self._may_hold(value):
            return value
        return self._cleaned(value, where)

    def _may_hold(self, value: Any) -> bool:
        """Return whether anything in `value` is worth a closer look; one pass instead of one for each
        text."""
        try:
            data = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            return True
        return bool(self._compiled().find_matches_as_indexes(_squeezed(data)))

    def _cleaned(self, value: Any, where: str | None) -> Any:
        if isinstance(value, str):
            return self.text(value, where=where)
        if is_json_object(value):
            return {self._cleaned(k, where): self._cleaned(v, where) for k, v in value.items()}
        if is_json_array(value):
            return [self._cleaned(item, where) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            clean = self.text(shown := str(value), where=where)
            return value if clean == shown else clean
        return value

    def _take(self, name: str, value: str) -> None:
        value = value.strip()
        if len(value) < _SHORTEST_NAMED:
            if _SECRET_NAME.search(name) and len(value) >= _BESIDE_NAME and value.lower() not in _UNIVERSAL:
                for sign in "=:":
                    self.add(f"{name.rpartition('.')[2]}{sign}{value}", name)
        elif is_secret(value, name):
            self.add(value, name)

    def _compiled(self) -> BytesAhoCorasick:
        matcher = self._matcher
        if matcher is None:
            from ahocorasick_rs import BytesAhoCorasick  # here: most processes have no secret

            with self._lock:
                self._ordered = list(self._forms.values())
                matcher = self._matcher = BytesAhoCorasick(list(self._forms))
        return matcher

    def _spans(self, data: bytes, matches: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, _Form]]:
        """Return where in `data` a secret stands: the matches in its squeezed form, in order, overlaps
        joined."""
        import numpy as np  # here, as the matcher: `--help` needs neither

        array = np.frombuffer(data, np.uint8)
        kept = ~np.isin(array, np.frombuffer(_DROPPED, np.uint8))
        escaped = (array[:-1] == ord("\\")) & ((array[1:] == ord("n")) | (array[1:] == ord("r")))
        kept[1:][escaped] = False
        place = np.flatnonzero(kept)
        spans: list[tuple[int, int, _Form]] = []
        for number, first, last in sorted(matches, key=lambda match: (match[1], -match[2])):
            form = self._ordered[number]
            start, end = _widened(data, int(place[first]), int(place[last - 1]) + 1, form)
            if spans and start < spans[-1][1]:
                if end > spans[-1][1]:
                    spans[-1] = (spans[-1][0], end, spans[-1][2])
            else:
                spans.append((start, end, form))
        return spans


SECRETS = Secrets()


class WithoutSecrets:
    """A stream of text in pieces, without the secrets of this process: a line is held back until it is whole,
    the end of a long one until no secret can go on in what follows."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take a piece; returns the text that may be written now."""
        clean = SECRETS.data(self._held + data)
        end = max(clean.rfind(b"\n") + 1, len(clean) - _HELD_BYTES)
        self._held = clean[end:]
        return clean[:end]

    def end(self) -> bytes:
        """Return what is left at the end of the stream, without secrets."""
        rest, self._held = SECRETS.data(self._held), b""
        return rest


def is_secret(value: str, name: str) -> bool:
    """Return whether a value of that name is one that must not be seen, rather than ordinary text."""
    if value.lower() in _UNIVERSAL:
        return False
    if _SECRET_NAME.search(name):
        return len(value) >= _SHORTEST_NAMED
    shortest = _SHORTEST_NAMED if name.endswith(".user") else _SHORTEST
    return len(value) >= shortest and not _is_ordinary(value, name)


# The forms in which issuers write keys, by which scanners of repositories find them too.
_ISSUED = re.compile(
    r"(?<![\w-])(?:[spr]k[-_][\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_\w{20,}"
    r"|npm_\w{30,}|xox[a-z]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_SCHEME = re.compile(r"\b(?:bearer|basic)\s+([\w.~+/-]{8,}=*)", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.+?-----END \1-----", re.DOTALL)
_LABELLED = re.compile(r"(?<![\w.-])([\w.-]{1,64})[\"']?\s*[:=]\s*[\"']?([^\s\"',;&]+)")
_URL = re.compile(r"\b[\w+.-]+://[^\s\"'<>]+")


def written_secrets(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the secrets that a JSON value of a stranger's shows: keys as their issuers write
    them, what stands behind a name that says so, and the credentials of headers and URLs."""
    if is_json_object(value):
        for key, item in value.items():
            yield from written_secrets(item, key)
    elif is_json_array(value):
        for item in value:
            yield from written_secrets(item, name)
    elif isinstance(value, str):
        if _names_secret(name, value):
            yield name, value
        yield from (("key", match[0]) for match in (*_ISSUED.finditer(value), *_PEM.finditer(value)))
        yield from (("authorization", match[1]) for match in _SCHEME.finditer(value))
        urls = (pair for url in _URL.findall(value) for pair in _url_parts("", url))
        yield from (pair for pair in (*_LABELLED.findall(value), *urls) if _names_secret(*pair))


def _names_secret(name: str, value: str) -> bool:
    """Return True if a name and its value make a secret: a bare `key` of a record is none, nor is a word."""
    if not _SECRET_NAME.search(name) or not is_secret(value, name):
        return False
    if re.search(r"pass|pwd", name, re.IGNORECASE):
        return True
    is_plain = _is_ordinary(value, name) or not any(map(str.isdigit, value))
    return _is_random(value) if name.lower() == "key" else not is_plain


def _squeezed(data: bytes) -> bytes:
    if b"\\" in data:
        data = _ESCAPED_BREAK.sub(b"", data)
    return data.translate(_LOWER, _DROPPED)


def _widened(data: bytes, start: int, end: int, form: _Form) -> tuple[int, int]:
    """Return the span with its neighbours that hold bits of the secret, and without half an escape."""
    for _ in range(form.before):
        start -= start > 0 and data[start - 1] in _BASE64_CHARS
    for _ in range(form.after):
        end += end < len(data) and data[end] in _BASE64_CHARS
    if form.after:
        while end < len(data) and data[end] == ord("="):
            end += 1
    slashes = 0
    while slashes < start and data[start - slashes - 1] == ord("\\"):
        slashes += 1
    return start - slashes % 2, end


def _is_ordinary(value: str, name: str) -> bool:
    if len(value) > _LONG:
        return False
    if _ORDINARY.fullmatch(value):
        return True
    if "://" in value:
        return not any(is_secret(part, key) for key, part in _url_parts("", value))
    is_path = _PATH.fullmatch(value) or (_PATH_NAME.search(name) and _RELATIVE_PATH.fullmatch(value))
    return bool(is_path) and not any(map(_is_random, re.split(r"[/\\:]", value)))


def _is_random(text: str) -> bool:
    """Return whether a segment of a path is a key, as in the address of a webhook."""
    kinds = (str.isdigit, str.islower, str.isupper)
    return len(text) >= 16 and all(any(kind(char) for char in text) for kind in kinds)


def _parts(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Yield what in a value is to be kept secret: itself, and what it is made of."""
    if len(value) > _LONG:
        yield from ((name, value[start : start + _LONG // 5]) for start in range(0, len(value), _LONG // 5))
        return
    yield name, value
    scheme, _, credentials = value.strip().partition(" ")
    if credentials and " " not in credentials and scheme.isalpha():
        yield name, credentials
        if scheme.lower() == "basic":
            user_password = _decoded(credentials)
            yield name, user_password
            yield f"{name}.password", user_password.partition(":")[2]
    if "://" in value:
        yield from _url_parts(name, value)
    # Of other values, the parts that a name or their look makes a secret: of a cookie, a key in JSON.
    is_named = _SECRET_NAME.search(name) is not None
    for key, part in (*_PAIR.findall(value), *_json_parts(name, value)):
        if is_named or _SECRET_NAME.search(key) or _is_random(part):
            yield key, part
    lines = value.splitlines()
    if len(lines) > 1:
        yield from ((name, line) for line in lines if len(line) >= _LINE and not line.startswith("-----"))


def _url_parts(name: str, url: str) -> Iterator[tuple[str, str]]:
    if "://" not in url:
        return
    try:
        parts = urlsplit(url.strip())
        user, password = parts.username or "", parts.password or ""
        query = parse_qsl(parts.query)
    except ValueError:
        return
    prefix = f"{name}." if name else ""
    for form in {password, unquote(password)} - {""}:
        yield f"{prefix}password", form
        yield f"{prefix}password", f"{user}:{form}"  # found next to its user if it is short
    yield f"{prefix}user", unquote(user)
    yield from ((prefix + key, part) for key, part in query)
    yield from ((f"{prefix}path", segment) for segment in parts.path.split("/") if _is_random(segment))


def _json_parts(name: str, value: str) -> Iterator[tuple[str, str]]:
    if not value.lstrip().startswith(("{", "[")):
        return
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return
    waiting: list[tuple[str, Any]] = [(name, document)]
    while waiting:
        key, item = waiting.pop()
        if is_json_object(item):
            waiting += item.items()
        elif is_json_array(item):
            waiting += ((key, element) for element in item)
        elif isinstance(item, str):
            yield key, item


def _decoded(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _forms(value: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield the value as software writes it, squeezed, each with how many characters next to it hold bits
    of it."""
    data = value.encode("utf-8", "surrogatepass")
    texts = {
        value,
        value[::-1],
        quote(data, safe=""),
        quote(data),
        quote_plus(data),
        "".join(f"%{byte:02x}" for byte in data),
        "".join(f"x{byte:02x}" for byte in data),
        "".join(f"u{ord(char):04x}" for char in value),
        json.dumps(value)[1:-1],
        html.escape(value),
        data.hex(),
        data.hex(":"),
    }
    for text in texts:
        if form := _squeezed(text.encode("utf-8", "surrogatepass")):
            yield form, 0, 0
    for bits, encode in ((6, base64.b64encode), (6, base64.urlsafe_b64encode), (5, base64.b32encode)):
        for offset in range(3 if bits == 6 else 5):  # bytes before it in the same group
            first, last = -(-8 * offset // bits), 8 * (offset + len(data)) // bits
            text = encode(bytes(offset) + data)[first:last]
            for form in {text, quote(text, safe="").encode()}:
                if len(form) >= _SHORTEST_NAMED:
                    yield _squeezed(form), int(offset > 0), 1
