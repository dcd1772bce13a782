"""A DSN is read as it was meant, shown without its secret, and says when the way has to be encrypted."""

from __future__ import annotations

import ssl
import traceback

import pytest

from app.session.errors import ConfigurationError
from persistence.postgres import PostgresPersistence
from persistence.postgres.dsn import Dsn, Host, Tls

CANARY = "c4n4ry"

READ: dict[str, Dsn] = {
    "postgresql://": Dsn((Host("localhost", 5432),)),
    "postgres://anna@db/shop": Dsn((Host("db", 5432),), "anna", None, "shop"),
    "postgresql://anna:pw@db:6000/shop": Dsn((Host("db", 6000),), "anna", "pw", "shop"),
    "postgresql://a:p@h1,h2:6000,[::1]:7000/d": Dsn(
        (Host("h1", 5432), Host("h2", 6000), Host("::1", 7000)), "a", "p", "d"
    ),
    "postgresql://a@/d?host=/tmp/x&port=6432": Dsn((Host("/tmp/x", 6432),), "a", None, "d"),
    "postgresql://a@%2Ftmp%2Fx/d": Dsn((Host("/tmp/x", 5432),), "a", None, "d"),
    "postgresql://a%40b:p%2Fw%23@db/d": Dsn((Host("db", 5432),), "a@b", "p/w#", "d"),
    "postgresql://a:p/w#1?@x@db/d": Dsn((Host("db", 5432),), "a", "p/w#1?@x", "d"),
    "postgresql://a:p@db/d?application_name=x@y": Dsn((Host("db", 5432),), "a", "p", "d"),
    "postgresql://db/d?user=a&password=p@w": Dsn((Host("db", 5432),), "a", "p@w", "d"),
    "postgresql://db?dbname=d&sslmode=require": Dsn((Host("db", 5432),), database="d", tls={"sslmode": "require"}),
}


@pytest.mark.parametrize("text", READ)
def test_a_dsn_is_read_as_it_was_meant(text: str) -> None:
    assert Dsn.parse(text) == READ[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"mysql://a:{CANARY}@db/d",
        f"host=db password={CANARY}",
        f"postgresql://a:{CANARY}@db:port/d",
        f"postgresql://a:{CANARY}@db/d?sslmode=prefer",
        f"postgresql://a:{CANARY}@db/d?password={CANARY}&colour=blue",
    ],
)
def test_what_is_no_dsn_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Dsn.parse(text)
    assert CANARY not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("password", [CANARY, f"{CANARY}/x", f"{CANARY}#x", f"{CANARY}@x", f"{CANARY}?x"])
def test_the_password_is_never_shown(password: str) -> None:
    dsn = Dsn.parse(f"postgresql://anna:{password}@db:6000/shop")
    assert dsn.password == password
    shown = f"{dsn} {dsn!r} {PostgresPersistence(f'postgresql://anna:{password}@db:6000/shop')!r}"
    assert CANARY not in shown
    assert "postgresql://anna@db:6000/shop" in shown


HERE = ("localhost", "127.0.0.1", "127.8.9.1", "::1", "/var/run/postgresql")
BEYOND = ("db", "10.0.0.1", "192.0.2.7", "2001:db8::1", "localhost.example.org", "127.0.0.1.example.org")


def modes(host: str, options: str = "", tls: Tls | None = None) -> tuple[ssl.VerifyMode, bool] | None:
    """How a certificate is verified and whether the name is compared; None in the clear."""
    context = Dsn.parse(f"postgresql://a@x/d{options}").encryption(Host(host, 5432), tls)
    return (context.verify_mode, context.check_hostname) if context else None


def test_only_this_machine_is_talked_to_in_the_clear_unless_it_is_said_in_so_many_words() -> None:
    full = ssl.CERT_REQUIRED, True
    assert {modes(host) for host in HERE} == {None}
    assert {modes(host) for host in BEYOND} == {full}
    assert {modes(host, "?sslmode=disable") for host in BEYOND} == {None}
    assert {modes(host, "?sslmode=require") for host in BEYOND} == {(ssl.CERT_NONE, False)}
    assert {modes(host, "?sslmode=verify-ca") for host in BEYOND} == {(ssl.CERT_REQUIRED, False)}
    assert {modes(host, "?sslmode=disable", "verify-full") for host in BEYOND} == {full}
    assert modes("localhost", "?sslmode=verify-full") == full
