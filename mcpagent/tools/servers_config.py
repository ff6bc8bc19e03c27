"""Which servers to run: a user's `mcp.json`, unchanged, or the built-in set."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from dotenv import dotenv_values

from mcpagent.config.environment import UnsetVariable, expand, known_variables, shell_word
from mcpagent.core.records import short_repr
from mcpagent.core.redact import SECRETS
from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcp.server import MCPServer, Server

# What has no end (a string, a comment) is one match too, or each quote in it would be tried as a beginning.
_STRING = r'"(?:\\.|[^"\\\n])*+"?'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*+[}\]])")


def parse_jsonc(text: str) -> Any:
    """Return the document. Raises json.JSONDecodeError, with the line and column of `text` itself."""
    return json.loads(_LAST_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def _blank(match: re.Match[str]) -> str:
    """Spaces in place of what JSON does not have, so that every position stays; a string stays as it is."""
    text = match[0]
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)


_USER = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
# How to get out to the network, and whom to trust there: without them nothing works behind a company's proxy.
_TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_PROXY_NAMES = _PROXIES + tuple(name.lower() for name in _PROXIES)
_HAS_USER = re.compile(r"(?:[a-z][a-z0-9+.-]*://)?[^/@\s]+@", re.IGNORECASE)


def inherited() -> dict[str, str]:
    """HOME, PATH and the like, certificates, and proxies but those whose address holds a user or password."""
    held_back = withheld(os.environ)
    names = (name for name in _USER + _TRUST + _PROXY_NAMES if name not in held_back)
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def withheld(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the proxy variables that are secrets, which a server gets only if its configuration names
    them."""
    return tuple(name for name in _PROXY_NAMES if _HAS_USER.match(environment.get(name, "")))


Isolation = Literal["shared", "episode"]

_TYPE_KEYS = ("type", "transport", "transportType")  # most clients; LangChain, fastmcp; Cline
_COMMON_KEYS = {"type", "disabled", "enabled", "timeout", "source", "settings"}
_STDIO_KEYS = _COMMON_KEYS | {"command", "args", "env", "envFile", "cwd"}
_URL_KEYS = ("url", "httpUrl", "serverUrl")  # most clients, Gemini CLI, Windsurf
_HTTP_KEYS = _COMMON_KEYS | {"headers", "auth", "oauth", *_URL_KEYS}
_STDIO_TYPES = {"stdio", "local"}  # Copilot CLI and opencode say `local` and `remote`
_HTTP_TYPES = {"http", "streamable-http", "streamablehttp", "streamable_http", "sse", "remote"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")


@dataclass(frozen=True, kw_only=True)
class StdioServer:
    """A server run as a child process. The child sees what `inherited` passes on, and `env`.

    `timeout_s` is the hard deadline of a call, None for the pool's default. `isolation` None means shared.
    `written` is the command and its arguments for a shell, with each `${VAR}` as the file has it.
    """

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys: never printed
    cwd: str | None = None
    timeout_s: float | None = None
    isolation: Isolation | None = None
    written: tuple[str, ...] | None = field(default=None, repr=False, compare=False)

    @property
    def in_shell(self) -> str:
        """Return what starts the server in a shell; a secret is named as the variable that holds it."""
        words = (self.command, *self.args)
        return " ".join(self.written or (shlex.quote(SECRETS.text(word)) for word in words))


@dataclass(frozen=True, kw_only=True)
class OAuthClient:
    """The OAuth client that a server's entry names; one without an id registers itself."""

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None  # separated by spaces; None: what the server asks for
    callback_port: int | None = None  # of the loopback redirect; None: any free one


@dataclass(frozen=True, kw_only=True)
class HttpServer:
    """A server reached over HTTP: streamable, or (`is_sse`) the older HTTP+SSE. `timeout_s` and `isolation`
    as for a `StdioServer`.

    `oauth` is None if the entry says nothing of a login; the server may still ask for one. `file` is where
    the entry stands.
    """

    name: str
    url: str = field(repr=False)  # its query may hold keys, as `headers` do: never printed
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float | None = None
    isolation: Isolation | None = None
    is_sse: bool = False
    oauth: OAuthClient | None = None
    file: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class InProcessServer:
    """A server object run in this process: its lifespan is entered once per connection. Given as the `server`
    itself, or as `build`, which makes it when a pool starts; `ledger` is the file that records its calls.

    `is_builtin` if it ships with mcpagent: its results are made of the models that its output schemas
    describe, and it holds no data of a user. `is_live` if it answers from a service elsewhere.
    """

    name: str
    server: MCPServer[Any] | Server[Any] | None = None
    build: Callable[..., MCPServer[Any] | Server[Any]] | None = None
    timeout_s: float | None = None
    isolation: Isolation | None = None
    is_builtin: bool = False
    is_live: bool = False

    def built(self, ledger: Path | None) -> MCPServer[Any] | Server[Any]:
        """Return the server object."""
        if self.server is not None:
            return self.server
        assert self.build is not None
        return self.build(ledger=ledger)


ServerConfig = StdioServer | HttpServer | InProcessServer


@dataclass(frozen=True)
class ServersFile:
    """The servers of an `mcp.json`; `notes` say what was skipped and why."""

    servers: tuple[StdioServer | HttpServer, ...]
    notes: tuple[str, ...] = ()


def learn_secrets(servers: Iterable[ServerConfig]) -> None:
    """Let nothing that is written or printed hold what these servers are given to keep: every value of `env`
    and `headers`, user parts and query values of URLs, and arguments such as `--api-key VALUE`."""
    for server in servers:
        match server:
            case StdioServer():
                SECRETS.learn(server.env)
                SECRETS.learn_named(_options(server.args))
                for argument in server.args:
                    SECRETS.learn_url(server.name, argument)
            case HttpServer():
                SECRETS.learn(server.headers)
                SECRETS.learn_url(server.name, server.url)
                if server.oauth is not None and server.oauth.client_secret:
                    SECRETS.add(server.oauth.client_secret, f"{server.name}.client_secret")
            case _:
                pass


def _options(args: Sequence[str]) -> dict[str, str]:
    """`--name VALUE` and `--name=VALUE` by the name."""
    options: dict[str, str] = {}
    for argument, following in zip(args, [*args[1:], ""], strict=False):
        if argument.startswith("-"):
            name, is_one, value = argument.lstrip("-").partition("=")
            options[name] = value if is_one else following
    return options


def load_servers(path: Path) -> ServersFile:
    """Read an `mcp.json`, or the file in which another client keeps its servers; comments are allowed.

    Raises UserError with file and line for bad JSON, an unset variable, or an entry that cannot be run.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UserError("it is not UTF-8 text", where=str(path)) from error
    try:
        document = parse_jsonc(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.colno}",
            where=f"{path}:{error.lineno}",
        ) from error
    except RecursionError:
        raise UserError("the values are nested too deeply", where=str(path)) from None
    except ValueError as error:  # a whole number past Python's limit of digits
        raise UserError(f"not valid JSON: {error}", where=str(path)) from None
    return _Reader(path=path, text=text, variables=known_variables(path)).read(document)


# Where files have their servers: most of them; VS Code; Zed; the settings of VS Code; Amp; opencode.
_PLACES = (
    *(("mcpServers",), ("servers",), ("context_servers",)),
    *(("mcp", "servers"), ("mcp.servers",), ("amp.mcpServers",), ("mcp",)),
)


def _entries_in(document: object) -> dict[str, Any] | None:
    """Return the servers of a document by name; None if it has none. Without a key that holds them, the
    document itself may be the map."""
    if not isinstance(document, dict):
        return None
    # Claude Code writes an empty map for each project, so what is empty is passed over.
    for place in (("projects", str(Path.cwd()), "mcpServers"), *_PLACES):
        entries: Any = document
        for key in place:
            entries = entries.get(key) if isinstance(entries, dict) else None
        if isinstance(entries, dict) and entries and not _is_entry(entries):
            return entries
    return document if document and all(map(_is_entry, document.values())) else None


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and any(
        isinstance(value.get(key), str | list) for key in ("command", *_URL_KEYS)
    )


def _as_most_write_it(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a server with the words of `mcpServers`: opencode has `environment` and one list
    for a command and its arguments, Zed had an object of them."""
    usual = {("env" if key == "environment" else key): value for key, value in entry.items()}
    for key in _TYPE_KEYS:
        if key in usual:
            usual.setdefault("type", usual.pop(key))
    match usual.get("command"):
        case [command, *args]:
            usual |= {"command": command, "args": [*args, *usual.get("args", [])]}
        case {"path": command, **rest}:
            usual |= {"command": command, **rest}
    if usual.get("tools") == ["*"]:  # all of them, as here
        del usual["tools"]
    return usual


def server_names(path: Path) -> frozenset[str]:
    """Return the servers that an `mcp.json` names, whether they can be started or not; none if it is
    broken."""
    try:
        document = parse_jsonc(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    return frozenset(_entries_in(document) or ())


@dataclass(frozen=True)
class _Reader:
    path: Path
    text: str
    variables: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def read(self, document: object) -> ServersFile:
        entries = _entries_in(document)
        if entries is None:
            raise UserError(
                "it names no server",
                where=str(self.path),
                remedy='Expected {"mcpServers": {"NAME": {"command": "...", "args": []}}}.',
            )
        servers = tuple(s for name, entry in entries.items() if (s := self._server(name, entry)) is not None)
        if not servers:
            raise UserError(
                "every server in it is disabled" if entries else "it names no server", where=str(self.path)
            )
        self._note_withheld(servers)
        learn_secrets(servers)
        return ServersFile(servers=servers, notes=tuple(self.notes))

    def _note_withheld(self, servers: Iterable[StdioServer | HttpServer]) -> None:
        for variable in withheld(os.environ):
            if any(isinstance(server, StdioServer) and variable not in server.env for server in servers):
                self.notes.append(
                    f"{variable} holds a user or a password, so a server gets it only if its env has "
                    f'"{variable}": "${{{variable}}}"'
                )

    def _server(self, name: str, entry: object) -> StdioServer | HttpServer | None:
        if not isinstance(entry, dict):
            raise self._error(name, f"must be an object, not {type(entry).__name__}")
        entry = _as_most_write_it(entry)
        if entry.get("disabled") is True or entry.get("enabled") is False:
            self.notes.append(f"server {name!r} is disabled")
            return None
        if ("settings" in entry or entry.get("source") == "extension") and not _is_entry(entry):
            self.notes.append(
                f"server {name!r} is left out: it is an extension of Zed, which alone can start it"
            )
            return None
        is_http = self._is_http(name, entry)
        for key in sorted(entry.keys() - (_HTTP_KEYS if is_http else _STDIO_KEYS)):
            self.notes.append(f"server {name!r}: unknown key {key!r} is ignored")
        return self._http(name, entry) if is_http else self._stdio(name, entry)

    def _is_http(self, name: str, entry: dict[str, Any]) -> bool:
        """Return True for a server over HTTP, by its `type`, else by what there is."""
        kind = entry.get("type")
        if kind is None:
            if "command" in entry and any(key in entry for key in _URL_KEYS):
                raise self._error(name, "has both a command and a url", remedy='Say which: "type": "stdio".')
            return any(key in entry for key in _URL_KEYS)
        if not isinstance(kind, str) or kind.lower() not in _STDIO_TYPES | _HTTP_TYPES:
            raise self._error(name, f"type must be 'stdio', 'http' or 'sse', not {short_repr(kind)}")
        return kind.lower() in _HTTP_TYPES

    def _stdio(self, name: str, entry: dict[str, Any]) -> StdioServer:
        server = StdioServer(
            name=name,
            command=self._text(name, "command", entry.get("command")),
            args=self._texts(name, "args", entry.get("args", [])),
            env=self._env_file(name, entry.get("envFile")) | self._map(name, "env", entry.get("env", {})),
            cwd=None if entry.get("cwd") is None else self._text(name, "cwd", entry["cwd"]),
            timeout_s=self._timeout(name, entry.get("timeout")),
        )
        learn_secrets([server])
        words = (entry["command"], *entry.get("args", []))
        return replace(server, written=tuple(shell_word(str(word), self.variables) for word in words))

    def _http(self, name: str, entry: dict[str, Any]) -> HttpServer:
        url = self._text(name, "url", next((entry[key] for key in _URL_KEYS if key in entry), None))
        if not _is_web_address(url):
            raise self._error(name, "url must be of the form http://host/path or https://host/path")
        headers = self._map(name, "headers", entry.get("headers", {}))
        oauth, token = self._auth(name, entry)
        if token is not None and not any(key.lower() == "authorization" for key in headers):
            headers["Authorization"] = f"Bearer {token}"
        for key, value in headers.items():
            if not (_HEADER_NAME.fullmatch(key) and _HEADER_VALUE.fullmatch(value)):
                raise self._error(
                    name, f"headers.{key} holds what no HTTP header can (its value is not shown)"
                )
        return HttpServer(
            name=name,
            url=url,
            headers=headers,
            timeout_s=self._timeout(name, entry.get("timeout")),
            is_sse=str(entry.get("type")).lower() == "sse",
            oauth=oauth,
            file=str(self.path),
        )

    def _auth(self, name: str, entry: dict[str, Any]) -> tuple[OAuthClient | None, str | None]:
        """The OAuth client, and the bearer token, that `oauth` (Claude Code, Gemini CLI) and `auth` (Cursor,
        fastmcp) of an entry give."""
        auth, oauth = entry.get("auth"), entry.get("oauth")
        token: str | None = None
        if isinstance(auth, str):
            token = None if auth.lower() == "oauth" else self._text(name, "auth", auth)
        elif isinstance(auth, dict) and oauth is None:
            oauth = auth
        elif auth is not None and not isinstance(auth, dict):
            raise self._error(name, 'auth must be "oauth", a token such as "${TOKEN}", or an object')
        if oauth is None or oauth is False:
            is_asked = isinstance(auth, str) and token is None and oauth is None
            return (OAuthClient() if is_asked else None), token
        if oauth is True:
            return OAuthClient(), token
        if not isinstance(oauth, dict):
            raise self._error(name, "oauth must be an object, true or false")
        given = {key.replace("_", "").lower(): value for key, value in oauth.items()}
        if given.get("enabled") is False:
            return None, token
        scopes = given.get("scopes", given.get("scope"))
        if isinstance(scopes, list):
            scopes = " ".join(self._texts(name, "oauth.scopes", scopes))
        return OAuthClient(
            client_id=self._optional(name, "oauth.clientId", given.get("clientid")),
            client_secret=self._optional(name, "oauth.clientSecret", given.get("clientsecret")),
            scope=self._optional(name, "oauth.scopes", scopes),
            callback_port=self._port(name, given.get("callbackport"), given.get("redirecturi")),
        ), token

    def _optional(self, name: str, key: str, value: object) -> str | None:
        return None if value in (None, "") else self._text(name, key, value)

    def _port(self, name: str, port: object, redirect: object) -> int | None:
        """Return the port of the loopback redirect, which a registered client may have to name."""
        try:
            if port is None:
                return None if redirect is None else urlsplit(str(redirect)).port
            number = int(str(port))
        except ValueError:
            number = 0
        if not 0 < number < 65536:
            raise self._error(name, f"oauth.callbackPort must be a port, not {short_repr(port)}")
        return number

    def _texts(self, name: str, key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise self._error(name, f"{key} must be a list of strings")
        return tuple(self._text(name, f"{key}[{i}]", item) for i, item in enumerate(value))

    def _map(self, name: str, key: str, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise self._error(name, f"{key} must be an object of strings")
        # VS Code unsets a variable by null.
        return {str(k): self._text(name, f"{key}.{k}", v) for k, v in value.items() if v is not None}

    def _env_file(self, name: str, value: object) -> dict[str, str]:
        """Return the variables of the file that VS Code's `envFile` names; it wants the file to be there."""
        if value is None:
            return {}
        path = Path(self._text(name, "envFile", value))
        if not path.is_file():
            raise self._error(name, f"envFile does not name a file: {path}")
        return {key: text for key, text in dotenv_values(path).items() if text is not None}

    def _text(self, name: str, key: str, value: object) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)  # ports and the like are often written without quotes
        if not isinstance(value, str) or (key == "command" and not value):
            raise self._error(name, f"{key} must be a string" + (", and is missing" if value is None else ""))
        if "\0" in value or not _is_encodable(value):
            raise self._error(name, f"{key} holds a character that no program can be given")
        try:
            return expand(value, self.variables)
        except UnsetVariable as error:
            raise self._error(name, f"{key} {error.reason}", remedy=error.remedy) from error

    def _timeout(self, name: str, value: object) -> float | None:
        """Milliseconds per call, as Claude Code reads it; it ignores values below 1000, and so do we."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise self._error(name, f"timeout must be a number of milliseconds, not {value!r}")
        if value < 1000:
            self.notes.append(f"server {name!r}: timeout {value} is ignored (milliseconds, at least 1000)")
            return None
        return value / 1000

    def _error(self, name: str, message: str, *, remedy: str | None = None) -> UserError:
        key = self.text.find(json.dumps(name))
        line = self.text.count("\n", 0, max(key, 0)) + 1
        return UserError(f"server {name!r}: {message}", where=f"{self.path}:{line}", remedy=remedy)


def _is_encodable(text: str) -> bool:
    """Half of a surrogate pair can stand in JSON, but reaches no process."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is not a number, a broken IPv6 address
        return False


_PROGRAMS = (".py", ".js", ".mjs", ".cjs", ".ts", ".jar")  # what a server is, rather than what it is about
# Variables that say how a server is run, or let it in, rather than what it is about.
_NOT_ABOUT = re.compile(r"^(PATH|HOME|UV|NPM|PIP|NODE|PYTHON|SSL|TMP)|CACHE|CERT|KEY|TOKEN|SECRET|PASS", re.I)


def server_places(servers: Sequence[ServerConfig]) -> dict[str, list[str]]:
    """Return by server the files and folders that it was started with: what its tools may be asked about."""
    places: dict[str, list[str]] = {}
    for server in servers:
        if isinstance(server, StdioServer):
            texts = [
                part
                for text in (*server.args, *(v for k, v in server.env.items() if not _NOT_ABOUT.search(k)))
                for part in (text, text.partition("=")[2])
            ]
            places[server.name] = [
                text
                for text in dict.fromkeys(texts)
                # Not of Path, which fails if the text is a whole program.
                if "/" in text and not text.endswith(_PROGRAMS) and os.path.exists(text)  # noqa: PTH110
            ]
    return places
