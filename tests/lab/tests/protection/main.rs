//! `application` blocks in force: real programs, a real charon on each host, packets on the wire.

mod applying;
mod datagrams;
mod faults;
mod held;
mod keys;
mod marks;
mod names;
mod orders;
mod services;

use usher_lab::protected::{
    CLIENT, SERVER, World, can_protect, json, wait_for_listener, watch_packets,
};
use usher_lab::{Host, PATIENCE, Role, Running, eventually};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Opens sockets of several kinds, one of them connected to a server that listens.
const SOCKETS: &str = "
import socket, sys
trusted, server = sys.argv[1:3]
listener = socket.create_server(('', 8000))
connection = socket.create_connection((trusted, 9000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect((server, 53))
print('ready', flush=True)
sys.stdin.read()
";

/// The listed socket whose JSON has this value.
fn socket<'s>(shown: &'s serde_json::Value, pointer: &str, value: &str) -> &'s serde_json::Value {
    let sockets = shown["sockets"].as_array().map_or(&[][..], Vec::as_slice);
    let is_wanted = |socket: &&serde_json::Value| {
        socket.pointer(pointer).and_then(serde_json::Value::as_str) == Some(value)
    };
    let mut found = sockets.iter().filter(is_wanted);
    match (found.next(), found.next()) {
        (Some(socket), None) => socket,
        _ => panic!("not one socket with {pointer} {value}: {shown:#}"),
    }
}

// Threat model: P50
#[test]
fn applications_need_a_running_protector() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    host.run(["usher", "policy", "apply"])?;
    world.write_secure()?;
    let stored = host.read("/var/lib/usher/applied.json")?;
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("protector"), "{}", refused.stderr);
    // Nothing was stored, so no daemon has ended anything for it.
    assert_eq!(host.read("/var/lib/usher/applied.json")?, stored);
    let mut protector = host.start_daemon(Role::Protector)?;
    assert_eq!(
        json(host, &["protection", "show"])?["applications"],
        serde_json::json!([])
    );
    host.run(["usher", "policy", "apply"])?;
    let shown = json(host, &["protection", "show"])?;
    assert_eq!(
        shown["applications"][0]["programs"],
        serde_json::json!([SERVER, CLIENT])
    );
    assert!(shown["spd_entries"].as_u64() > Some(0), "{shown}");
    let waiting = "/etc/usher/policy.d/waiting.policy";
    host.write(
        waiting,
        "application no-such-program { network 0.0.0.0/0 trusted; }\n",
    )?;
    let told = host.run(["usher", "policy", "apply"])?.stderr;
    let trouble = "warning: no-such-program: there is no such file";
    assert!(told.contains(trouble), "{told}");
    host.run(["rm", waiting])?;
    let told = host.run(["usher", "policy", "apply"])?.stderr;
    assert!(!told.contains(trouble), "{told}");
    // Its death changes nothing in force.
    let entries = host.run(["ip", "xfrm", "policy"])?.stdout;
    protector.crash()?;
    assert_eq!(host.run(["ip", "xfrm", "policy"])?.stdout, entries);
    protector.start()?;
    assert_eq!(host.run(["ip", "xfrm", "policy"])?.stdout, entries);
    // Without the block nothing is left.
    host.run(["rm", "/etc/usher/policy.d/secure.policy"])?;
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(json(host, &["protection", "show"])?["spd_entries"], 0);
    let left = host.run(["ip", "xfrm", "policy"])?.stdout;
    assert!(!left.contains("mark 0x"), "{left}");
    Ok(())
}

/// A service that was started before the policy came: its listener passed no hook.
// Threat model: P27
#[test]
fn a_listener_older_than_the_policy_is_governed() -> Outcome {
    let world = World::new()?;
    let host = &world.server;
    let _servers = world.serve()?;
    let protector = host.start_daemon(Role::Protector)?;
    assert!(world.gets_the_page(&world.intruder)?, "no policy yet");
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    assert!(
        !world.gets_the_page(&world.intruder)?,
        "plaintext is refused at once"
    );
    assert!(
        world.gets_the_page(&world.trusted)?,
        "by its policy, not altogether"
    );
    assert!(
        world.gets_an_echo(&world.intruder)?,
        "another program's older listener is left alone"
    );
    let shown = json(host, &["protection", "show"])?;
    assert!(shown["adopted_sockets"].as_u64() > Some(0), "{shown}");
    assert!(
        shown["counters"]["refused_plain"].as_u64() > Some(0),
        "{shown}"
    );
    assert!(
        protector.wait_log("packets arrived in the clear and were dropped", PATIENCE)?,
        "{}",
        protector.log()?
    );
    Ok(())
}

#[test]
fn live_sockets_are_shown_with_their_statement() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    host.add_account("alice", 2001)?;
    let listen = ["socat", "-t500", "TCP-LISTEN:9000,fork", "EXEC:/bin/cat"];
    let _server = world.trusted.spawn(listen)?;
    wait_for_listener(&world.trusted, 9000)?;
    let _other = host.spawn(["socat", "-t500", "TCP-LISTEN:9001,fork", "EXEC:/bin/cat"])?;
    let (trusted, server) = (
        world.trusted.ipv4().to_string(),
        world.server.ipv4().to_string(),
    );
    let start = || -> Result<Running, Box<dyn std::error::Error>> {
        let command = [SERVER, "-c", SOCKETS, &trusted, &server];
        let mut running = host.command(command).user("alice").spawn()?;
        running.read_past("ready\n", PATIENCE)?;
        Ok(running)
    };
    // Older than the policy.
    let mut running = start()?;
    let _protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    let peers = [format!("{trusted}:9000"), format!("{server}:53")];
    for older in [true, false] {
        if !older {
            running.end()?;
            running = start()?;
        }
        let shown = json(host, &["protection", "show"])?;
        assert_eq!(shown["sockets_total"], 3, "{older}: {shown:#}");
        let listener = socket(&shown, "/state", "listening");
        assert_eq!(listener["local"], "0.0.0.0:8000");
        assert_eq!(listener["treatment"], "each_packet");
        let connection = socket(&shown, "/peer", &peers[0]);
        assert_eq!(connection["treatment"], "bypass", "{connection:#}");
        let datagrams = socket(&shown, "/peer", &peers[1]);
        assert_eq!(datagrams["class"], "encryption", "{datagrams:#}");
        assert_eq!(datagrams["level"], "mandatory");
        assert_eq!(datagrams["protocol"], "udp");
        assert_eq!(datagrams["sa_out"], serde_json::Value::Null);
        for (socket, line) in [(listener, 1), (connection, 3), (datagrams, 6)] {
            assert_eq!(
                (&socket["program"], &socket["user"]),
                (&SERVER.into(), &"alice".into())
            );
            assert!(socket["process"].as_u64() > Some(1), "{socket:#}");
            let by = socket["line"].as_str().unwrap_or_default();
            assert!(by.contains(&format!("secure.policy:{line}:")), "{socket:#}");
        }
    }
    let told = host.run(["usher", "protection", "show", "--sockets", "1"])?;
    assert!(told.stdout.contains("alice"), "{}", told.stdout);
    assert!(
        told.stdout.contains("and 2 more: --sockets 3 shows all"),
        "{}",
        told.stdout
    );
    let told = host.run(["usher", "protection", "show", "--sockets", "0"])?;
    assert!(!told.stdout.contains("alice"), "{}", told.stdout);
    running.end()?;
    assert_eq!(json(host, &["protection", "show"])?["sockets_total"], 0);
    Ok(())
}

/// The policy of figure 9 for real programs.
#[test]
fn a_secure_policy_encrypts_a_real_program() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let world = World::new()?;
    let _charons = world.start_charons()?;
    let _protectors = world.start_protectors()?;
    world.write_secure()?;
    for host in world.protected() {
        host.run(["usher", "policy", "apply"])?;
    }
    let _servers = world.serve()?;
    world.wait_for_sas()?;
    let mut capture = watch_packets(&world.server)?;
    assert!(world.gets_the_page(&world.laptop)?, "protected");
    assert!(
        world.gets_the_page(&world.trusted)?,
        "trusted, in the clear"
    );
    assert!(
        !world.gets_the_page(&world.intruder)?,
        "plaintext is refused"
    );
    assert!(
        world.gets_an_echo(&world.intruder)?,
        "another program is left alone"
    );
    assert!(
        world.gets_an_echo(&world.laptop)?,
        "also between protected hosts"
    );
    // A connection that stays is shown with its SA.
    let server = format!("{}:8000", world.server.ipv4());
    let connect = "import socket, sys; s = socket.create_connection((sys.argv[1], 8000)); \
                   print('ready', flush=True); sys.stdin.read()";
    let mut connected =
        world
            .laptop
            .spawn([SERVER, "-c", connect, &world.server.ipv4().to_string()])?;
    connected.read_past("ready\n", PATIENCE)?;
    let shown = json(&world.laptop, &["protection", "show"])?;
    let connection = socket(&shown, "/peer", &server);
    let spi = connection["sa_out"]["spi"].as_str().ok_or("no SA")?;
    let state = world.laptop.run(["ip", "xfrm", "state"])?.stdout;
    assert!(state.contains(&format!("spi 0x{spi}")), "{spi}: {state}");
    assert!(connection["sa_out"]["bytes"].as_u64() > Some(0));
    assert!(connection["sa_in"]["bytes"].as_u64() > Some(0));
    connected.end()?;
    // The last packets of the last one.
    let end = format!("tcp {} 9000\n", world.laptop.ipv4());
    let seen = capture.read_past(&end, PATIENCE)?;
    let saw = |line: String| seen.lines().any(|seen| seen == line);
    let (laptop, trusted) = (world.laptop.ipv4(), world.trusted.ipv4());
    assert!(saw(format!("esp {laptop}")), "{seen}");
    assert!(
        !saw(format!("tcp {laptop} 8000")),
        "from the SYN on: {seen}"
    );
    assert!(saw(format!("tcp {trusted} 8000")), "{seen}");
    assert!(saw(format!("tcp {} 8000", world.intruder.ipv4())), "{seen}");
    let shown = json(&world.server, &["protection", "show"])?;
    let counters = &shown["counters"];
    assert!(counters["arrived_protected"].as_u64() > Some(0), "{shown}");
    assert!(counters["refused_plain"].as_u64() > Some(0), "{shown}");
    Ok(())
}

/// The kernel does not protect what stays on a host: a governed program reaches itself by every
/// address of its host.
// Threat model: P71
#[test]
fn a_hosts_own_addresses_are_left_alone() -> Outcome {
    let world = World::with_ipv6()?;
    let host = &world.server;
    let _protector = host.start_daemon(Role::Protector)?;
    let policy = format!(
        "application {SERVER}, {CLIENT} {{ network 0.0.0.0/0 protected All; protection All {{ \
         localport=any remoteport=any encryption mandatory; }} }}\n"
    );
    host.write("/etc/usher/policy.d/all.policy", policy)?;
    host.run(["usher", "policy", "apply"])?;
    host.write("/srv/www/page", "a page\n")?;
    let web = ["-u", "-m", "http.server", "--bind", "::", "--directory"];
    let web = [SERVER].into_iter().chain(web).chain(["/srv/www", "8000"]);
    let _web = host.spawn(web)?;
    wait_for_listener(host, 8000)?;
    let get = |address: &str| -> Result<String, Box<dyn std::error::Error>> {
        let url = format!("http://{address}:8000/page");
        let got = host.command([CLIENT, "-sS", "-m", "10", &url]).run()?;
        Ok(got.stdout + &got.stderr)
    };
    let (ipv4, ipv6) = (host.ipv4().to_string(), format!("[{}]", host.ipv6()));
    for address in ["127.0.0.1", "[::1]", &ipv4, &ipv6] {
        assert_eq!(get(address)?, "a page\n", "{address}");
    }
    // Also by one that it gets later.
    let add = ["ip", "addr", "add", "fd77::99/64", "dev", "eth0", "nodad"];
    host.run(add)?;
    eventually("the new address is known", || {
        Ok(get("[fd77::99]")? == "a page\n")
    })?;
    Ok(())
}
