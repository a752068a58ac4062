"""Prints a line for each IPv4 packet at eth0: `esp OTHER`, or `tcp OTHER PORT` for TCP in the clear. OTHER is
the other host, PORT the lower port. Takes the own address, and then `leaving` to print only packets that
leave."""

import socket, struct, sys

own = socket.inet_aton(sys.argv[1])
only_leaving = sys.argv[2:] == ["leaving"]
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.bind(("eth0", 3))
print("ready", flush=True)
while True:
    packet, sender = packets.recvfrom(65535)
    if sender[1] != 0x800 or only_leaving and sender[2] != socket.PACKET_OUTGOING:
        continue
    protocol, start = packet[9], (packet[0] & 15) * 4
    other = packet[12:16] if packet[16:20] == own else packet[16:20]
    other = socket.inet_ntoa(other)
    if protocol == 50:
        print("esp", other, flush=True)
    elif protocol == 6:
        ports = struct.unpack("!HH", packet[start : start + 4])
        print("tcp", other, min(ports), flush=True)
