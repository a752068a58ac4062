"""Prints a line for each packet of IP at eth0: `esp OTHER`, or `tcp OTHER PORT` for TCP in the clear, or
`udp OTHER PORT` for UDP, except that of IKE. OTHER is the other host, by its IPv4 address also where the
packet is one of IPv6, as a connection takes the address that answers first. PORT is the lower port. Takes
the own IPv4 address, and then `leaving` to print only packets that leave."""

import socket, struct, sys

own = socket.inet_aton(sys.argv[1])
only_leaving = sys.argv[2:] == ["leaving"]
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.bind(("eth0", 3))


def as_ipv4(address):
    """The IPv4 address of the host that has this address: hosts of the lab have one number in both."""
    return own[:3] + address[-1:] if len(address) == 16 else address


print("ready", flush=True)
while True:
    packet, sender = packets.recvfrom(65535)
    if only_leaving and sender[2] != socket.PACKET_OUTGOING:
        continue
    if sender[1] == 0x800:
        protocol, start = packet[9], (packet[0] & 15) * 4
        ends = packet[12:16], packet[16:20]
    elif sender[1] == 0x86DD:
        protocol, start = packet[6], 40
        ends = packet[8:24], packet[24:40]
    else:
        continue
    source, target = map(as_ipv4, ends)
    other = socket.inet_ntoa(source if target == own else target)
    if protocol == 50:
        print("esp", other, flush=True)
    elif protocol in (6, 17):
        ports = struct.unpack("!HH", packet[start : start + 4])
        if protocol == 6:
            print("tcp", other, min(ports), flush=True)
        elif not {500, 4500} & set(ports):
            print("udp", other, min(ports), flush=True)
