"""fetch_url over TLS: the address is pinned, and still the server is asked for by its name and has to prove it."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.tools.fetch import fetch_tool
from tests.unit.tools.calls import call, failure, service


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate for this name that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*form))
    return certificate, private


@asynccontextmanager
async def secure_web(certificate: Path, key: Path) -> AsyncIterator[tuple[int, list[str | None]]]:
    """A server that says `hello`; its port, and the names that it was asked for."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.sni_callback = lambda _, name, __: names.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.2", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], names
    finally:
        server.close()


async def resolve(host: str, port: int) -> list[str]:
    return ["127.0.0.2"]


@pytest.mark.parametrize(("name", "code"), [("shop.test", None), ("other.test", "FETCH_FAILED")])
async def test_the_certificate_has_to_be_that_of_the_name(
    name: str, code: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificate(tmp_path, "shop.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(made[0]))
    tools = service(fetch_tool(["127.0.0.2"], resolve=resolve))
    async with secure_web(*made) as (port, names):
        result = await tools.execute(call("fetch_url", json.dumps({"url": f"https://{name}:{port}/"})))
    assert names == [name]
    if code is None:
        assert result.value["text"] == "hello"
    else:
        assert failure(result)[0] == code
        assert "Hostname mismatch" in failure(result)[1]
