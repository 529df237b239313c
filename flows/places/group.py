"""A group of nodes that train together. Environment variables, set by the scheduler's job, describe it to each node.

TRANSFORMER_NODES=2  TRANSFORMER_NODE_RANK=0..1  TRANSFORMER_RENDEZVOUS=10.0.0.1:29400 (an address of node 0)
TRANSFORMER_ADDRESS=10.0.0.2   this node's address for the others; default: the one from which it reaches the rendezvous
TRANSFORMER_JOIN_SECONDS=900   time for which a node waits for the others
"""

import ipaddress
import os
import socket
from dataclasses import dataclass, field
from typing import Self

import psutil

from transformer_core.errors import ExitCode, UserError, configuration_error

# A queue may allocate nodes one by one. A node that has waited this long for the others ends, and its scheduler tries again.
JOIN_SECONDS = "900"


def _join_seconds() -> int:
    text = os.environ.get("TRANSFORMER_JOIN_SECONDS", JOIN_SECONDS)
    if not text.isdigit():
        raise configuration_error(f"TRANSFORMER_JOIN_SECONDS={text}: must be a number of seconds")
    return int(text)


@dataclass(frozen=True)
class NodeGroup:
    """A group, as seen from node `rank` of `nodes`. Node 0 has the rendezvous, and the process that writes the training's outputs.

    Defaults of `address` and `join_seconds` are read from the environment.
    """

    nodes: int
    rank: int
    rendezvous: str
    address: str = field(default_factory=lambda: os.environ.get("TRANSFORMER_ADDRESS", ""))
    join_seconds: int = field(default_factory=_join_seconds)

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the group of this node, or None if it trains alone.

        Raises `UserError` (78): the environment is incomplete or has an invalid value.
        """
        nodes_text = os.environ.get("TRANSFORMER_NODES", "1")
        if nodes_text == "1":
            return None
        try:
            nodes, rank = int(nodes_text), int(os.environ["TRANSFORMER_NODE_RANK"])
            rendezvous = os.environ["TRANSFORMER_RENDEZVOUS"]
            address_of(rendezvous)
        except KeyError as error:
            raise configuration_error(f"TRANSFORMER_NODES={nodes_text}, but {error.args[0]} is not set") from None
        except ValueError as error:
            remedy = "TRANSFORMER_RENDEZVOUS is host:port, the others are numbers."
            raise configuration_error(f"TRANSFORMER_NODES={nodes_text}: {error}", remedy) from None
        if not 0 <= rank < nodes:
            raise configuration_error(f"TRANSFORMER_NODE_RANK={rank}: must be from 0 to {nodes - 1}")
        return cls(nodes, rank, rendezvous)

    def torchrun(self) -> list[str]:
        """Return options of torchrun. The rendezvous is static: torch's dynamic one numbers nodes by address, so any could get rank 0."""
        host, port = address_of(self.rendezvous)
        return [
            f"--nnodes={self.nodes}",
            f"--node-rank={self.rank}",
            "--rdzv-backend=static",
            f"--rdzv-conf=timeout={self.join_seconds}",
            f"--master-addr={host}",
            f"--master-port={port}",
            f"--local-addr={self.own_address()}",
        ]

    def interfaces(self) -> dict[str, str]:
        """Return variables with the network interface for gloo and NCCL, which otherwise may choose another one, or the loopback."""
        address = self.own_address()
        name = next((name for name, addresses in psutil.net_if_addrs().items() if address in {entry.address for entry in addresses}), None)
        if name is None:
            return {}
        chosen = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}  # To NCCL eth1 alone would also name eth10.
        return {key: os.environ.get(key, value) for key, value in chosen.items()}

    def own_address(self) -> str:
        """Return this node's address for the others: $TRANSFORMER_ADDRESS, else the one on the route to the rendezvous.

        On node 0, the rendezvous may be the host's own name, which Debian resolves to a loopback address (127.0.1.1). Other machines do not
        reach that, so the address on the default route is returned then. Raises `UserError` (69): there is no such route.
        """
        if self.address:
            return self.address
        host, port = address_of(self.rendezvous)
        address = address_towards(host, port)
        on_one_machine = host == "localhost" or _is_loopback(host)
        # An address for documentation (RFC 5737).
        return address_towards("192.0.2.1", 9) if _is_loopback(address) and not on_one_machine else address


def address_of(endpoint: str) -> tuple[str, int]:
    """Return host and port of "host:port". Raises `ValueError` for any other text."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{endpoint!r} is not host:port")
    return host, int(port)


def address_towards(host: str, port: int) -> str:
    """Return the address from which this machine would reach a host; nothing is sent.

    Raises `UserError` (69): the host is unknown or cannot be reached.
    """
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"{host}:{port}: {error.strerror}", "Check the network.", ExitCode.UNAVAILABLE) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
