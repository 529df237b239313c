"""The machines that train together, as each of them is told by its environment, whoever started them: Prefect, Slurm or Kubernetes.

TRANSFORMER_NODES=2  TRANSFORMER_NODE_RANK=0..1  TRANSFORMER_RENDEZVOUS=10.0.0.1:29400 (an address of node 0)
TRANSFORMER_ADDRESS=10.0.0.2   this node's own address, where the others reach it; else the one it reaches the rendezvous from
"""

import ipaddress
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

from transformer_core.errors import configuration_error

# A queue may hand out machines one by one; after so long a node that waits for another gives up, and its scheduler tries again.
JOIN_SECONDS = 900


@dataclass(frozen=True)
class Gang:
    """One of the machines: node `rank` of `nodes`; node 0 holds the rendezvous and rank 0, which writes what the training makes."""

    nodes: int
    rank: int
    rendezvous: str
    address: str = ""
    join_seconds: int = JOIN_SECONDS

    @classmethod
    def from_environment(cls) -> Self | None:
        """The gang of this machine, or None where it trains alone.

        Raises:
            UserError: exit code 78; the environment tells half of it, or what cannot be.
        """
        told = os.environ.get("TRANSFORMER_NODES", "1")
        if told == "1":
            return None
        try:
            nodes, rank = int(told), int(os.environ["TRANSFORMER_NODE_RANK"])
            rendezvous = os.environ["TRANSFORMER_RENDEZVOUS"]
            join_seconds = int(os.environ.get("TRANSFORMER_JOIN_SECONDS", JOIN_SECONDS))
            address_of(rendezvous)
        except KeyError as error:
            raise configuration_error(f"TRANSFORMER_NODES={told}, but {error.args[0]} is not set") from None
        except ValueError as error:
            raise configuration_error(f"TRANSFORMER_NODES={told}: {error}", "RENDEZVOUS is host:port, the others are numbers.") from None
        if not 0 <= rank < nodes:
            raise configuration_error(f"TRANSFORMER_NODE_RANK={rank}: must be from 0 to {nodes - 1}")
        return cls(nodes, rank, rendezvous, os.environ.get("TRANSFORMER_ADDRESS", ""), join_seconds)

    def environment(self) -> dict[str, str]:
        """What `from_environment` reads."""
        return {
            "TRANSFORMER_NODES": str(self.nodes),
            "TRANSFORMER_NODE_RANK": str(self.rank),
            "TRANSFORMER_RENDEZVOUS": self.rendezvous,
            "TRANSFORMER_ADDRESS": self.address,
            "TRANSFORMER_JOIN_SECONDS": str(self.join_seconds),
        }

    def torchrun(self) -> list[str]:
        """Its options. Static, because torch's dynamic rendezvous numbers nodes by their addresses: rank 0 could be on any of them."""
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
        """The network interface for gloo and NCCL, which would take another one, or the loopback one, where the host's name says so."""
        own = self.own_address()
        name = next((name for name, all_of_it in psutil.net_if_addrs().items() if own in {one.address for one in all_of_it}), None)
        return {} if name is None else {key: os.environ.get(key, name) for key in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}

    def own_address(self) -> str:
        """This node's address, where the others reach it.

        On node 0 the rendezvous may be the host's own name, to which Debian gives a loopback address (127.0.1.1): no other machine reaches
        that, so it counts only where the rendezvous names the loopback itself.

        Raises:
            UserError: exit code 78; this machine has no other address.
        """
        if self.address:
            return self.address
        host, port = address_of(self.rendezvous)
        address = address_towards(host, port)
        return outward_address() if _is_loopback(address) and not (host == "localhost" or _is_loopback(host)) else address


def address_of(endpoint: str) -> tuple[str, int]:
    """Host and port of "host:port"; raises ValueError for anything else."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{endpoint!r} is not host:port")
    return host, int(port)


def address_towards(host: str, port: int) -> str:
    """The address of this machine that it would reach another host from; nothing is sent."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def outward_address() -> str:
    """The address of this machine on its default route, or else on the first interface that is up and not the loopback.

    Raises:
        UserError: exit code 78; there is none.
    """
    with suppress(OSError):
        return address_towards("192.0.2.1", 9)  # An address for documentation (RFC 5737); nothing is sent.
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if name in up and one.family == socket.AF_INET and not _is_loopback(one.address):
                return str(one.address)
    raise configuration_error("this machine has no address but the loopback's", "Set TRANSFORMER_ADDRESS to one that the others reach.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def free_port(address: str) -> int:
    """A port of this machine that nobody listens at now."""
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])
