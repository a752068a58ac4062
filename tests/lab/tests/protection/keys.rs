//! The IKE key of a host, and its SAs, are replaced while its traffic is protected.

use usher_lab::protected::{
    SERVER, World, can_protect, json, public_key, wait_for_listener, watch_packets, xfrm_counter,
};
use usher_lab::{Host, PATIENCE, Running, eventually};

use super::Outcome;

/// Answers each byte of each connection.
const ECHO: &str = "
import socket
listener = socket.create_server(('', 8000))
while True:
    connection, _ = listener.accept()
    try:
        while (data := connection.recv(1)):
            connection.sendall(data)
    except ConnectionError:  # a killed client resets it
        pass
";

/// Sends bytes over one connection, one after the other, and prints a line for each answer.
const BEAT: &str = "
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 8000))
while True:
    connection.sendall(b'x')
    assert connection.recv(1) == b'x'
    print('beat', flush=True)
    time.sleep(0.05)
";

/// As documented.
const MAKE_ECDSA_KEY: [&str; 11] = [
    "ssh-keygen",
    "-t",
    "ecdsa",
    "-b",
    "256",
    "-m",
    "PKCS8",
    "-N",
    "",
    "-f",
    "/etc/usher/ike/ecdsa_key",
];

/// Two protected hosts with one connection between governed programs.
struct Pair {
    beats: Running,
    _echo: Running,
    _daemons: Vec<usher_lab::Daemon>,
    world: World,
}

impl Pair {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let world = World::new()?;
        let mut daemons = world.start_charons()?;
        daemons.extend(world.start_protectors()?);
        world.write_secure()?;
        world.apply()?;
        world.wait_for_sas()?;
        let echo = world.server.spawn([SERVER, "-c", ECHO])?;
        wait_for_listener(&world.server, 8000)?;
        let mut pair = Self {
            beats: beat(&world)?,
            _echo: echo,
            _daemons: daemons,
            world,
        };
        pair.goes_on()?;
        Ok(pair)
    }

    /// Checks that the connection still carries data.
    fn goes_on(&mut self) -> Outcome {
        for _ in 0..3 {
            self.beats.read_past("beat\n", PATIENCE)?;
        }
        Ok(())
    }

    /// Writes the `host` blocks of these hosts' policies, where the server has these IKE keys, and
    /// applies them.
    fn state_keys(&self, hosts: &[&Host], keys: &[&str]) -> Outcome {
        self.state_keys_with("ike/key", hosts, keys)
    }

    /// The same, where the laptop has the key in this file alone.
    fn state_keys_with(&self, file: &str, hosts: &[&Host], keys: &[&str]) -> Outcome {
        let (laptop, server) = (&self.world.laptop, &self.world.server);
        let block = |host: &Host, keys: &str| -> Result<String, Box<dyn std::error::Error>> {
            let (name, address) = (host.name(), host.ipv4());
            let key = public_key(host, "host_key")?;
            Ok(format!(
                "host {name} {{ address {address}; key \"{key}\"; ike-key {keys}; }}\n"
            ))
        };
        let quoted: Vec<String> = keys.iter().map(|key| format!("\"{key}\"")).collect();
        let own = format!("\"{}\"", public_key(laptop, file)?);
        let text = block(laptop, &own)? + &block(server, &quoted.join(", "))?;
        for host in hosts {
            host.write("/etc/usher/policy.d/hosts.policy", &text)?;
            host.run(["usher", "policy", "apply"])?;
        }
        Ok(())
    }

    /// The server's view of its only peer.
    fn peer(&self) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
        let mut peers = json(&self.world.server, &["protection", "peers"])?;
        Ok(peers["peers"][0].take())
    }
}

/// Connects the laptop's governed program to the server's.
fn beat(world: &World) -> Result<Running, Box<dyn std::error::Error>> {
    let server = world.server.ipv4().to_string();
    Ok(world.laptop.spawn([SERVER, "-c", BEAT, &server])?)
}

/// Packets that found no SA, on both hosts.
fn packets_without_sa(world: &World) -> Result<u64, Box<dyn std::error::Error>> {
    let mut number = 0;
    for host in world.protected() {
        number += xfrm_counter(host, "XfrmOutNoStates")?;
    }
    Ok(number)
}

// Threat model: P74
#[test]
fn an_ike_key_is_replaced_under_traffic() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let mut pair = Pair::new()?;
    let (laptop, server) = (pair.world.laptop.clone(), pair.world.server.clone());
    let mut capture = watch_packets(&server)?;
    let without_sa = packets_without_sa(&pair.world)?;
    let former = public_key(&server, "ike/key")?;
    let refused = server.command(["usher", "protection", "use-key"]).run()?;
    assert!(refused.stderr.contains("new-key"), "{}", refused.stderr);
    let made = json(&server, &["protection", "new-key"])?;
    let next = made["next_key"].as_str().ok_or("no key")?.to_owned();
    assert_eq!(
        json(&server, &["protection", "new-key"])?,
        made,
        "one at a time"
    );
    // The twin: a policy without the key would end all protection of this host.
    let refused = server.command(["usher", "protection", "use-key"]).run()?;
    assert!(!refused.status.success());
    assert!(refused.stderr.contains(&next), "{}", refused.stderr);
    assert_eq!(public_key(&server, "ike/key")?, former);

    // A peer that does not accept the key yet: the SAs of the former one stay.
    pair.state_keys(&[&server], &[&former, &next])?;
    server.run(["usher", "protection", "use-key"])?;
    assert_eq!(public_key(&server, "ike/key")?, next);
    eventually("the reason is told", || {
        let why_not = pair.peer()?["classes"][0]["why_not"].take();
        Ok(why_not
            .as_str()
            .is_some_and(|why_not| why_not.contains("IKE key")))
    })?;
    assert_eq!(pair.peer()?["classes"][0]["protected"], true);
    pair.goes_on()?;

    // It accepts both, and SAs of the new key take the place of the former ones'.
    let since = pair.peer()?["since"].as_u64().ok_or("no IKE SA")?;
    pair.state_keys(&[&laptop], &[&former, &next])?;
    eventually("the IKE SA is of the new key", || {
        let peer = pair.peer()?;
        // The clock and the age of the SA are both rounded.
        Ok(peer["since"].as_u64() > Some(since + 1) && peer["classes"][0]["protected"] == true)
    })?;
    pair.goes_on()?;
    assert_eq!(packets_without_sa(&pair.world)?, without_sa, "no gap");

    // The former key is accepted no longer.
    pair.state_keys(&[&laptop, &server], &[&next])?;
    pair.world.wait_for_sas()?;
    pair.goes_on()?;

    // The laptop has no Ed25519 any more: the server's second key is for such peers.
    for host in [&laptop, &server] {
        host.run(MAKE_ECDSA_KEY)?;
    }
    let ecdsa = public_key(&server, "ike/ecdsa_key")?;
    let hosts = [&laptop, &server];
    pair.state_keys_with("ike/ecdsa_key", &hosts, &[&next, &ecdsa])?;
    pair.world.wait_for_sas()?;
    pair.goes_on()?;
    let statement = json(&server, &["protection", "new-key"])?["statement"].take();
    assert!(
        statement.as_str().is_some_and(|keys| keys.contains(&ecdsa)),
        "{statement}"
    );
    let _echo = pair.world.serve_echo()?;
    assert!(
        pair.world.gets_an_echo(&laptop)?,
        "of a program without a block"
    );
    let end = format!("tcp {} 9000\n", laptop.ipv4());
    let seen = capture.read_past(&end, PATIENCE)?;
    assert!(seen.contains(&format!("esp {}", laptop.ipv4())), "{seen}");
    assert!(!seen.contains(" 8000"), "in the clear: {seen}");
    Ok(())
}

/// Twice within seconds: what was negotiated lately is negotiated again as well.
// Threat model: P67
#[test]
fn flushed_sas_are_negotiated_again() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let mut pair = Pair::new()?;
    let laptop = pair.world.laptop.clone();
    let mut capture = watch_packets(&pair.world.server)?;
    for _ in 0..2 {
        pair.beats.end()?;
        laptop.run(["ip", "xfrm", "state", "flush"])?;
        pair.beats = beat(&pair.world)?;
        pair.goes_on()?;
    }
    let _echo = pair.world.serve_echo()?;
    assert!(
        pair.world.gets_an_echo(&laptop)?,
        "of a program without a block"
    );
    let seen = capture.read_past(&format!("tcp {} 9000\n", laptop.ipv4()), PATIENCE)?;
    assert!(!seen.contains(" 8000"), "in the clear: {seen}");
    Ok(())
}

/// Answers each datagram.
const ANSWERS: &str = "
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('', 8001))
while True:
    server.sendto(*server.recvfrom(1))
";

/// Sends datagrams, and prints a line for each answer.
const ASKS: &str = "
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], 8001))
client.settimeout(0.5)
while True:
    client.send(b'x')
    try:
        client.recv(1)
        print('beat', flush=True)
    except TimeoutError:
        pass
";

/// It sends nothing for which its kernel would ask for SAs, and its peer's kernel has them.
// Threat model: P67
#[test]
fn sas_flushed_where_datagrams_are_only_answered_are_negotiated_again() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let pair = Pair::new()?;
    let (laptop, server) = (&pair.world.laptop, &pair.world.server);
    let _answers = server.spawn([SERVER, "-c", ANSWERS])?;
    eventually("the server of datagrams listens", || {
        let listening = server.run(["ss", "-lunH", "sport = 8001"])?.stdout;
        Ok(!listening.is_empty())
    })?;
    let address = server.ipv4().to_string();
    let ask = || laptop.spawn([SERVER, "-c", ASKS, &address]);
    let mut asks = ask()?;
    asks.read_past("beat\n", PATIENCE)?;
    asks.end()?;
    // The connection would ask.
    let mut beats = pair.beats;
    beats.end()?;
    server.run(["ip", "xfrm", "state", "flush"])?;
    let mut asks = ask()?;
    for _ in 0..3 {
        asks.read_past("beat\n", PATIENCE)?;
    }
    Ok(())
}
