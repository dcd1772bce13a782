"""Decides which addresses a tool may connect to: those of the public internet, and what the settings allow besides."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

from app.session.errors import ConfigurationError
from app.tools.types import ToolError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_PUBLIC6 = IPv6Network("2000::/3")
_NEVER = tuple(  # what some Python versions take for public; and what is public by its number alone
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # answers inside of Azure, with secrets of the machine
        "192.0.0.0/24",
        "192.88.99.0/24",
        "2001::/23",
        "3fff::/20",
    )
)


class Allowed:
    """What may be reached: public addresses, hosts and networks of `allow`, and no `denied_ports` anywhere."""

    def __init__(self, allow: Iterable[str] = (), denied_ports: Iterable[int] = ()) -> None:
        """`allow` holds names of hosts, addresses, and networks like 10.1.0.0/16. Raises ConfigurationError."""
        self._hosts: set[str] = set()
        self._networks: list[Network] = []
        self._denied_ports = frozenset(denied_ports)
        for entry in allow:
            try:
                self._networks.append(ipaddress.ip_network(entry))
            except ValueError as error:
                if "/" in entry or ":" in entry or not entry:
                    raise ConfigurationError(
                        f"tools.fetch.allow: {entry!r} is no host, address or network ({error})"
                    ) from error
                self._hosts.add(entry.rstrip(".").lower())

    def check(self, host: str, addresses: Iterable[str], port: int) -> None:
        """Raises ToolError `ADDRESS_DENIED` if any of the addresses that `host` stands for may not be reached."""
        if port in self._denied_ports:
            raise ToolError("ADDRESS_DENIED", f"port {port} is the runtime's own; it cannot be fetched from")
        is_allowed_host = host.rstrip(".").lower() in self._hosts
        for text in addresses:
            address = ipaddress.ip_address(text)
            if not all(self._is_allowed(part, is_allowed_host=is_allowed_host) for part in _parts(address)):
                raise ToolError(
                    "ADDRESS_DENIED", f"{host!r} is {text}, which is no public address; tools.fetch.allow can allow it"
                )

    def _is_allowed(self, address: Address, *, is_allowed_host: bool) -> bool:
        if address.is_multicast or address.is_unspecified:
            return False
        return is_allowed_host or _is_public(address) or any(address in network for network in self._networks)


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _PUBLIC6:
        return False
    is_special = address.is_private or address.is_loopback or address.is_link_local or address.is_reserved
    return address.is_global and not is_special and not any(address in network for network in _NEVER)


def _parts(address: Address) -> list[Address]:
    """The address, or those that are hidden in it: an IPv4 address may travel inside of several kinds of IPv6 ones."""
    if isinstance(address, IPv4Address):
        return [address]
    address = IPv6Address(int(address))  # without the zone that a link-local one has
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return [address, *address.teredo]
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return [IPv4Address(int(address) & 0xFFFF_FFFF)]
    return [address]
