//! The control channel's port against those who are no known host, and against known hosts that
//! misbehave: whatever they do, alice on laptop goes on reading her mail.
#![forbid(unsafe_code)]

mod attack;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attack::{Attack, Result, alice_reads, listen};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use usher_lab::hostile::{ALPN, Channel, Identity, Port, dial, id_of};
use usher_lab::{Daemon, Host, Lab, PATIENCE, Role};
use usher_proto::{
    ClientBody, ClientFrame, Notice, Refusal, ServerFrame, SessionId, SessionRequest,
};

const CONTROL: u16 = 3440;

fn ping(request: u64) -> ClientFrame {
    let body = ClientBody::Ping;
    ClientFrame { request, body }
}

/// Idle connections of the flood.
const IDLE: usize = 10_000;
/// The number that the verifier may keep: of one address, and in all.
const PER_ADDRESS: u64 = 64;
const TOTAL: u64 = 512;

fn control(server: &Host) -> SocketAddr {
    (server.ipv4(), CONTROL).into()
}

/// Returns whether the server has closed this connection. Earlier bytes are passed over.
fn closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

// Threat model: A5
#[test]
fn who_is_no_known_host_gets_no_channel() -> Result {
    let attack = Attack::new()?;
    let (mailhost, stranger) = (&attack.mail.mailhost, &attack.mail.stranger);
    let verifier = &attack.mail.verifier;
    let open = || mailhost.number(Role::Verifier, "channels");
    let before = open()?;

    // A key mailhost does not know, from the stranger and from laptop's own address.
    for from in [stranger, &attack.mail.laptop] {
        let heard = listen(verifier)?;
        let outcome = Channel::connect(from, mailhost, &Identity::fresh());
        assert!(outcome.is_err(), "an unknown key is let in");
        let address = format!("address={}", from.ipv4());
        let why = "its key is not the `key` of a `host` block";
        heard.line(verifier, &["refused a control connection", &address, why])?;
    }
    // A known key, another protocol.
    for protocol in [b"usher/2".as_slice(), b"http/1.1", b"imap"] {
        let heard = listen(verifier)?;
        let stream = dial(&attack.mail.laptop, control(mailhost))?;
        let outcome = Channel::open(stream, &attack.laptop_key, protocol)
            .and_then(|mut channel| channel.ping());
        assert!(outcome.is_err(), "another protocol is let in");
        heard.line(verifier, &["refused a control connection"])?;
    }
    // No TLS at all, and a TLS record of nonsense.
    for bytes in [
        b"a LOGIN alice secret\r\n".as_slice(),
        b"\x16\x03\x01\x40\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        &[0; 4096],
        &[0xff; 4096],
    ] {
        let heard = listen(verifier)?;
        let mut stream = dial(stranger, control(mailhost))?;
        stream.write_all(bytes)?;
        // A record that is not whole is waited for; its sender goes.
        stream.shutdown(std::net::Shutdown::Write)?;
        assert!(closed(&mut stream));
        heard.line(verifier, &["refused a control connection"])?;
    }
    assert_eq!(open()?, before);

    // The twin: a known key and the right protocol, from any address.
    Channel::connect(stranger, mailhost, &attack.laptop_key)?;
    alice_reads(&attack.mail)
}

/// A courier that connects to several addresses of the host leaves those that answer later.
#[test]
fn a_connection_that_says_nothing_is_no_refusal() -> Result {
    let attack = Attack::new()?;
    let (mailhost, stranger) = (&attack.mail.mailhost, &attack.mail.stranger);
    let verifier = &attack.mail.verifier;
    let heard = listen(verifier)?;
    for _ in 0..3 {
        drop(dial(stranger, control(mailhost))?);
    }
    // The twin: it has begun a handshake.
    let mut begun = dial(stranger, control(mailhost))?;
    begun.write_all(&[0x16])?;
    begun.shutdown(std::net::Shutdown::Write)?;
    assert!(closed(&mut begun));
    heard.line(verifier, &["refused a control connection"])?;
    let refused = verifier.log()?;
    let refused = refused.matches("refused a control connection").count();
    assert_eq!(refused, 1, "{}", verifier.log()?);
    Ok(())
}

// Threat model: A7
#[test]
fn slow_handshakes_end_and_slow_frames_delay_no_one() -> Result {
    let attack = Attack::new()?;
    let (mailhost, stranger) = (&attack.mail.mailhost, &attack.mail.stranger);
    let verifier = &attack.mail.verifier;
    let heard = listen(verifier)?;

    // Says nothing; says the first byte of a record; says a byte now and then.
    let mut silent = dial(stranger, control(mailhost))?;
    let mut begun = dial(stranger, control(mailhost))?;
    begun.write_all(&[0x16])?;
    let mut slow = dial(stranger, control(mailhost))?;
    // A host that has a channel and is slow with its frames.
    let mut channel = attack.channel()?;
    let ping = ping(9).encode();
    let (first, last) = ping.split_at(5);
    channel.send(first)?;

    let record = [&[0x16, 0x03, 0x01, 0x02, 0x00][..], &[0; 512]].concat();
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < PATIENCE && sent < record.len() {
        if slow.write_all(&record[sent..=sent]).is_err() {
            break;
        }
        sent += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(sent < record.len(), "a slow handshake goes on for ever");
    assert!(closed(&mut silent) && closed(&mut begun));
    heard.line(verifier, &["handshake too slow"])?;

    channel.send(last)?;
    assert_eq!(channel.receive()?, Some(ServerFrame::Pong { request: 9 }));
    alice_reads(&attack.mail)
}

#[test]
fn the_newest_channel_of_a_host_is_the_one() -> Result {
    let attack = Attack::new()?;
    let (alice, bob) = (attack.user_key("alice")?, attack.user_key("bob")?);
    let mut first = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let mut working = attack.granted(&mut first, &mut asked, &alice)?;
    let session = id_of(&asked.sign(&alice)?);

    let mut second = attack.channel()?;
    assert_eq!(first.receive()?, None, "the older channel stays open");
    assert!(first.ping().is_err());
    assert_eq!(attack.mail.mailhost.number(Role::Verifier, "channels")?, 1);
    // Sessions are the host's and not the channel's.
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    assert_eq!(second.announce(session, announcement)?, Ok(()));
    attack.served(port, "alice")?;
    attack.granted(&mut second, &mut attack.asked("bob")?, &bob)?;
    // The newest channel reports the end of a session.
    attack
        .mail
        .mailhost
        .run(["usher", "user", "disable", "alice"])?;
    loop {
        match second.receive()? {
            Some(ServerFrame::Notice(Notice::SessionEnded {
                session: ended,
                reason,
            })) => {
                assert_eq!((ended, reason), (session, Refusal::DisabledUser));
                break;
            }
            Some(_) => {}
            None => panic!("the newest channel was closed"),
        }
    }
    assert!(closed(&mut working));
    Ok(())
}

/// Makes room for the flood among this process's descriptors.
fn many_descriptors() -> Result {
    let limit = getrlimit(Resource::Nofile);
    let wanted = IDLE as u64 + 1024;
    if limit.current.is_some_and(|current| current < wanted) {
        let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(wanted),
                maximum,
            },
        )?;
    }
    Ok(())
}

/// As many connections that say nothing, from these addresses in turn.
fn idle(
    from: &Host,
    addresses: &[Ipv4Addr],
    server: SocketAddr,
    count: usize,
) -> Result<Vec<TcpStream>> {
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let address = addresses[number % addresses.len()];
        let port = Port::any(from, IpAddr::V4(address))?;
        all.push(port.connect(server)?);
    }
    Ok(all)
}

/// Descriptors that the daemon has open.
fn descriptors(daemon: &mut Daemon) -> Result<u64> {
    let folder = format!("/proc/{}/fd", daemon.pid()?);
    Ok(std::fs::read_dir(folder)?.count() as u64)
}

/// Memory of a process, KiB.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    Ok(number.ok_or("no VmRSS")?)
}

// Threat model: A7
#[test]
fn ten_thousand_idle_connections_disturb_no_one() -> Result {
    many_descriptors()?;
    let begun = Instant::now();
    let mut mail = Lab::mail()?;
    // From one address, then from two hundred more: another host each, as far as can be seen.
    let one = [mail.stranger.ipv4()];
    let many: Vec<Ipv4Addr> = (0..200).map(|n| Ipv4Addr::new(10, 77, 1, 1 + n)).collect();
    let mut script = String::new();
    for address in &many {
        script.push_str(&format!("addr add {address}/16 dev eth0\n"));
    }
    let batch = mail.stranger.command(["ip", "-batch", "-"]).input(script);
    batch.succeed()?;
    mail.mailhost
        .run(["ip", "route", "add", "10.77.1.0/24", "dev", "eth0"])?;

    let unused = descriptors(&mut mail.verifier)?;
    let server = control(&mail.mailhost);
    for (addresses, bound) in [(&one[..], PER_ADDRESS), (&many[..], TOTAL)] {
        let mut idle = idle(&mail.stranger, addresses, server, IDLE)?;
        // A session and its channel from before, and all made anew in the midst of it.
        alice_reads(&mail)?;
        mail.courier.crash()?;
        alice_reads(&mail)?;
        let half_open = mail.mailhost.number(Role::Verifier, "half_open")?;
        assert!(half_open <= bound, "{half_open} half-open connections");
        let open = descriptors(&mut mail.verifier)?;
        assert!(
            open <= unused + bound + 64,
            "{open} descriptors, {unused} unused"
        );
        let memory = resident(mail.verifier.pid()?)?;
        assert!(memory < 64 * 1024, "{memory} KiB");
        // The oldest were closed.
        assert!(closed(&mut idle[0]));
        assert!(
            mail.mailhost.number(Role::Verifier, "half_open_dropped")?
                >= IDLE as u64 - TOTAL - PER_ADDRESS
        );
    }
    alice_reads(&mail)?;
    // The log was not flooded as well: 200 lines of a kind in a minute, of which there are two.
    let minutes = begun.elapsed().as_secs() / 60 + 2;
    let lines = mail.verifier.log()?.lines().count() as u64;
    assert!(
        lines < 200 + 400 * minutes,
        "{lines} lines in {minutes} minutes"
    );
    Ok(())
}

// Threat model: A34
#[test]
fn a_host_that_reads_no_answers_loses_only_its_channel() -> Result {
    let attack = Attack::new()?;
    let mut channel = attack.channel()?;
    let pings: Vec<u8> = (0..1000)
        .flat_map(|request| ping(request).encode())
        .collect();
    let begin = Instant::now();
    let limit = PATIENCE;
    // Its answers fill the ways back; then the verifier, which waits for nobody, closes.
    while channel.send(&pings).is_ok() {
        assert!(begin.elapsed() < limit, "it goes on for ever");
    }
    alice_reads(&attack.mail)
}

#[test]
fn verdicts_that_nobody_reads_take_a_bounded_room() -> Result {
    let mut attack = Attack::new()?;
    let verifier = attack.mail.verifier.pid()?;
    let memory = || resident(verifier);
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let announcement = attack.announcement(&mut asked, &attack.port()?)?;
    let session = SessionId::from_bytes([1; 16]);
    let announce = |request| ClientFrame {
        request,
        body: ClientBody::Session(session, SessionRequest::Announce(announcement)),
    };
    let frames: Vec<u8> = (0..1000)
        .flat_map(|request| announce(request).encode())
        .collect();
    let before = memory()?;
    let begin = Instant::now();
    while channel.send(&frames).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "it goes on for ever");
    }
    let grown = memory()?.saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    alice_reads(&attack.mail)
}

/// Connects and hangs up, or shakes hands with an unknown key, until it is stopped.
fn flood(from: &Host, server: SocketAddr, handshakes: bool, stop: &AtomicBool) {
    let identity = Identity::fresh();
    let mut kept = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        // The verifier may refuse all of it. Its answers do not matter.
        let Ok(stream) = dial(from, server) else {
            continue;
        };
        if handshakes {
            let refused = Channel::open(stream, &identity, ALPN).and_then(|mut c| c.ping());
            assert!(refused.is_err());
        } else {
            kept.push_back(stream);
            while kept.len() > 200 {
                kept.pop_front();
            }
        }
    }
}

#[test]
fn new_channels_open_during_a_flood_of_handshakes() -> Result {
    let mut mail = Lab::mail()?;
    let server = control(&mail.mailhost);
    for (from, handshakes) in [("laptop", false), ("stranger", false), ("stranger", true)] {
        let from = match from {
            "laptop" => mail.laptop.clone(),
            _ => mail.stranger.clone(),
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result {
            for _ in 0..2 {
                scope.spawn(|| flood(&from, server, handshakes, &stop));
            }
            let read = (0..3).try_for_each(|_| {
                mail.courier.crash()?;
                alice_reads(&mail)
            });
            stop.store(true, Ordering::Relaxed);
            read
        })?;
    }
    Ok(())
}
