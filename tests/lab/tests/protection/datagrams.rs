//! Datagram sockets that programs have connected before a policy, as those of QUIC are.

use usher_lab::protected::watch_packets;

use super::*;

/// Has a socket of its own for its first client, and answers each datagram.
const ANSWERS: &str = "
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('', 9443))
data, peer = server.recvfrom(2000)
server.connect(peer)
while True:
    try:
        server.send(data)
        data = server.recv(2000)
    except OSError as error:
        print(error, flush=True)
";

/// For each line of its input, sends datagrams of the size of QUIC's first ones until one of them is answered.
const ASKS: &str = "
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], 9443))
client.settimeout(0.2)
number = 0
for _ in sys.stdin:
    answered = False
    while not answered:
        number += 1
        try:
            client.send(b'%09d' % number + bytes(1191))
            while not answered:
                answered = int(client.recv(2000)[:9]) == number
        except OSError as error:
            print(error, flush=True)
    print('answered', flush=True)
";

/// It goes on through the roll-out and the way back, protected as the policy says. The judge is a capture.
// Threat model: P45
#[test]
fn connected_datagram_sockets_outlast_changes_of_policy() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let world = World::new()?;
    let _charons = world.start_charons()?;
    let _protectors = world.start_protectors()?;
    world.apply()?;
    let (laptop, server) = (&world.laptop, &world.server);
    let _echo = world.serve_echo()?;
    let _answers = server.spawn([SERVER, "-c", ANSWERS])?;
    eventually("the server of datagrams listens", || {
        let listening = server.run(["ss", "-unaH", "sport = 9443"])?.stdout;
        Ok(!listening.is_empty())
    })?;
    let mut client = laptop.spawn([SERVER, "-c", ASKS, &server.ipv4().to_string()])?;
    let mut goes_on = || -> Outcome {
        for _ in 0..3 {
            client.write("\n")?;
            client.read_past("answered\n", PATIENCE)?;
        }
        Ok(())
    };
    // The packets of some exchanges, up to that of a program without a block.
    let seen_during = |exchange: &mut dyn FnMut() -> Outcome| -> Result<String, _> {
        let mut capture = watch_packets(laptop)?;
        exchange()?;
        assert!(world.gets_an_echo(laptop)?);
        let end = format!("tcp {} 9000\n", server.ipv4());
        Ok::<_, Box<dyn std::error::Error>>(capture.read_past(&end, PATIENCE)?)
    };
    let (clear, esp) = (
        format!("udp {} 9443\n", server.ipv4()),
        format!("esp {}\n", server.ipv4()),
    );
    goes_on()?;

    let policy = format!(
        "application {SERVER} {{\n  network 10.77.0.0/24 protected P;\n  network 0.0.0.0/0 trusted;\n  \
         protection P {{ localport=any remoteport=any encryption mandatory; }}\n}}\n"
    );
    world.write_policy("datagrams", &policy)?;
    for host in world.protected() {
        let told = host.run(["usher", "policy", "apply"])?.stderr;
        assert!(!told.contains("that it has connected"), "{told}");
        assert!(is_marked(host)?, "{}", host.name());
    }
    let seen = seen_during(&mut goes_on)?;
    assert!(seen.contains(&esp) && !seen.contains(&clear), "{seen}");

    for host in world.protected() {
        host.run(["rm", "/etc/usher/policy.d/datagrams.policy"])?;
    }
    world.apply()?;
    let seen = seen_during(&mut goes_on)?;
    assert!(seen.contains(&clear) && !seen.contains(&esp), "{seen}");
    for host in world.protected() {
        assert!(!is_marked(host)?, "{}", host.name());
    }
    Ok(())
}

/// Whether the connected socket has a mark.
fn is_marked(host: &Host) -> Result<bool, Box<dyn std::error::Error>> {
    let shown = host.run(["ss", "-uneH", "sport = 9443 or dport = 9443"])?;
    assert!(shown.stdout.contains("9443"), "{}", shown.stdout);
    Ok(shown.stdout.contains("fwmark:"))
}
