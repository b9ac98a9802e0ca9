"""Commands that repair a fault, as narrow as possible: for one user, one interface, one subnet, the
ports in use. The text after each says how long it lasts and what it costs."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from dataclasses import dataclass

UDP_PORTS = (20000, 29999)  # csrc/core/runtime/rendezvous.cpp
GROUPS = "239.0.0.0/8"
GROUPS6 = "ff15::6d63:6173:7400:0/104"
TORCH_INDEX = "https://download.pytorch.org/whl/"
MULTICAST_ON = "programs may then send to groups and join them there"
RING = "export MCAST_ALGORITHM=ring  (goes on without multicast: a host then sends more)"


def until_reboot(command: str, keep: str, cost: str) -> str:
    return f"{command}  (until reboot; to keep it: {keep}; {cost})"


def stays(command: str, back: str, cost: str) -> str:
    """`back`: when the change takes effect, or what reverts it."""
    return f"{command}  (stays, {back}; {cost})"


def for_shell(command: str, cost: str) -> str:
    return f"{command}  (in this shell, for what it starts; {cost})"


def link(command: str, cost: str) -> str:
    """`ip link ...`."""
    return until_reboot(command, "in the network's configuration", cost)


def sysctl(name: str, value: int | str, cost: str) -> str:
    keep = f"echo {name}={value} > /etc/sysctl.d/60-torch-mcast-{name.rpartition('.')[2]}.conf"
    return until_reboot(f"sysctl -w {name}={value}", keep, cost)


def torch(version: str, option: str = "") -> str:
    """Returns the `pip install` of a torch. For x86-64, PyPI has the build for CUDA of each
    version; other builds have a label, such as 2.13.0+cpu, and each label has its own index."""
    pip = f"pip install {option}".rstrip()
    public, _, label = version.partition("+")
    if re.fullmatch(r"cpu|xpu|cu\d+|rocm[\d.]+", label):
        return f"{pip} torch=={version} --index-url {TORCH_INDEX}{label}"
    return f"{pip} torch=={public}" if re.match(r"\d", public) else f"{pip} torch"


def user_limit(item: str, value: int | str, cost: str) -> str:
    """Applies to the current user, from the next login on. Batch systems and services have their
    own limits."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "USER"
    file = f"/etc/security/limits.d/torch-mcast-{item}.conf"
    return (
        f'echo "{user} - {item} {value}" > {file}  (for this user, from the next login on; of services: '
        f"Limit{item.upper()}= in their units; {cost})"
    )


@dataclass(frozen=True)
class Opening:
    """Traffic that a packet filter must accept: `protocol` udp, tcp or igmp, from one subnet, on
    one interface."""

    protocol: str
    source: str
    interface: str
    ports: tuple[int, int] = (0, 0)

    @property
    def to(self) -> str:
        return {"udp": GROUPS, "igmp": "224.0.0.0/4"}.get(self.protocol, "")

    def command(self, manager: str, chain: str = "") -> str:
        """`manager`: ufw, firewalld, nft or iptables. `chain`: for nft, "inet filter input"."""
        made: dict[str, Callable[[], str]] = {
            "ufw": self._ufw,
            "firewalld": self._firewalld,
            "nft": lambda: self._nft(chain),
        }
        return made.get(manager, self._iptables)()

    @property
    def cost(self) -> str:
        """Returns the text that says what the opening permits."""
        return {
            "udp": f"any program that joins such a group then receives what hosts of {self.source} send",
            "tcp": f"hosts of {self.source} can then reach any program that listens on these ports",
        }.get(self.protocol, "hosts of any address may ask which groups this host has joined")

    def _ufw(self) -> str:
        ports = f" port {self.ports[0]}:{self.ports[1]}" if self.ports[0] else ""
        source = "any" if self.protocol == "igmp" else self.source
        command = (
            f"ufw allow in on {self.interface} proto {self.protocol} from {source} "
            f"to {self.to or 'any'}{ports}"
        )
        return stays(command, "ufw delete allow ... takes it back", self.cost)

    def _firewalld(self) -> str:
        source = "" if self.protocol == "igmp" else f' source address="{self.source}"'
        to = f' destination address="{self.to}"' if self.to else ""
        what = f' port port="{self.ports[0]}-{self.ports[1]}" protocol="{self.protocol}"'
        if not self.ports[0]:
            what = f' protocol value="{self.protocol}"'
        rule = f'rule family="ipv4"{source}{to}{what} accept'
        command = (
            f"firewall-cmd --permanent --zone=$(firewall-cmd --get-zone-of-interface={self.interface}) "
            f"--add-rich-rule='{rule}' && firewall-cmd --reload"
        )
        return stays(command, "--remove-rich-rule takes it back", self.cost)

    def _nft(self, chain: str) -> str:
        source = "" if self.protocol == "igmp" else f" ip saddr {self.source}"
        to = f" ip daddr {self.to}" if self.to else ""
        what = f" {self.protocol} dport {self.ports[0]}-{self.ports[1]}"
        if not self.ports[0]:
            what = f" ip protocol {self.protocol}"
        rule = f'iifname "{self.interface}"{source}{to}{what} accept'
        return until_reboot(f"nft insert rule {chain} {rule}", "in /etc/nftables.conf", self.cost)

    def _iptables(self) -> str:
        source = "" if self.protocol == "igmp" else f" -s {self.source}"
        to = f" -d {self.to}" if self.to else ""
        ports = f" --dport {self.ports[0]}:{self.ports[1]}" if self.ports[0] else ""
        rule = f"-i {self.interface}{source}{to} -p {self.protocol}{ports} -j ACCEPT"
        return until_reboot(f"iptables -I INPUT {rule}", "netfilter-persistent save", self.cost)
