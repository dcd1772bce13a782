"""How to reach the database: read from one line of text, and never shown with its password."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote

from app.session.errors import ConfigurationError

Tls: TypeAlias = Literal["disable", "require", "verify-ca", "verify-full"]

# A password may hold any character, an @ or a / too, as long as a host can still be told behind it.
_SHAPE = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^:@/?]*)(?::(?P<password>.*?))?@)?(?P<hosts>[^/?@]*)(?:/(?P<database>[^?]*))?"
    r"(?:\?(?P<options>.*))?",
    re.DOTALL,
)
_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>\d+))?")
_PLACE = ("host", "port", "user", "password", "dbname")
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_IGNORED = ("application_name", "target_session_attrs", "connect_timeout")  # those are decided here
_KNOWN = (*_PLACE, *_TLS, *_IGNORED)


@dataclass(frozen=True, slots=True)
class Host:
    """Where one server listens: a name, an address, or the directory of its Unix socket."""

    name: str
    port: int

    @property
    def is_socket(self) -> bool:
        return self.name.startswith("/")

    @property
    def is_here(self) -> bool:
        """Whether what is sent there cannot leave this machine."""
        if self.is_socket or self.name == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.name).is_loopback
        except ValueError:  # a name: what it stands for is not ours to trust
            return False

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Dsn:
    """The hosts in the order in which they are tried; what is None is found as the driver finds it (PGUSER, ...)."""

    hosts: tuple[Host, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str | None = None
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Read `postgresql://user:password@host:port,host:port/database?option=value`, never quoting it in an error.

        A Unix socket is `postgresql://user@/database?host=/directory`. Raises ConfigurationError.
        """
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                "the DSN is not of the form postgresql://user:password@host:port/database?option=value"
            )
        options = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
        if unknown := sorted(options.keys() - set(_KNOWN)):
            raise ConfigurationError(f"the DSN has unknown options {unknown}; known are {', '.join(_KNOWN)}")
        if options.get("sslmode", "disable") not in get_args(Tls):
            raise ConfigurationError(f"sslmode in the DSN is one of {', '.join(get_args(Tls))}")
        given = {name: unquote(match[name]) if match[name] else None for name in ("user", "password", "database")}
        return cls(
            _hosts(match["hosts"], options),
            options.get("user") or given["user"],
            options.get("password") or given["password"],
            options.get("dbname") or given["database"],
            {name: options[name] for name in _TLS if name in options},
        )

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"postgresql://{user}{','.join(map(str, self.hosts))}/{self.database or ''}"

    def encryption(self, host: Host, wanted: Tls | None) -> ssl.SSLContext | Literal[False]:
        """How to talk to a host: `wanted`, else the DSN's sslmode, else verified, or in the clear if it is here."""
        mode = wanted or self.tls.get("sslmode") or ("disable" if host.is_here else "verify-full")
        if mode == "disable" or host.is_socket:
            return False
        context = ssl.create_default_context(cafile=self.tls.get("sslrootcert"))
        context.check_hostname = mode == "verify-full"
        if mode == "require":
            context.verify_mode = ssl.CERT_NONE
        if "sslcert" in self.tls:
            context.load_cert_chain(self.tls["sslcert"], self.tls.get("sslkey"))
        return context


def _hosts(authority: str, options: Mapping[str, str]) -> tuple[Host, ...]:
    names = options.get("host", authority).split(",")
    ports = options.get("port", "5432").split(",")
    if len(ports) == 1:
        ports *= len(names)
    if len(ports) != len(names):
        raise ConfigurationError("the DSN has more hosts than ports, or fewer")
    hosts = []
    for name, default in zip(names, ports, strict=True):
        found = _HOST.fullmatch(unquote(name))
        if found is None or not (found["port"] or default).isdigit():
            raise ConfigurationError("a host in the DSN is not of the form host:port")
        hosts.append(Host(found["host"].strip("[]") or "localhost", int(found["port"] or default)))
    return tuple(hosts)
