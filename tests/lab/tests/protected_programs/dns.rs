//! A service of UDP: dnsmasq, asked by dig, which connects its socket, and by a dnsmasq that forwards
//! dig's questions, which does not.

use std::error::Error;

use usher_lab::{Host, Running, eventually};

use crate::capture::{Capture, Packet, Sa};
use crate::wire::{connections, nothing_is_plain, shows};
use crate::{Outcome, addresses, here, is_of, with_hosts};

const PORT: u16 = 53;
const NAME: &str = "www.abc.com";
const ANSWER: &str = "192.0.2.77";

/// How often each client asks at an address: over UDP, over TCP.
const QUESTIONS: (usize, usize) = (2, 1);

/// The forwarder's addresses on its own host, for the server's IPv4 and IPv6 address.
const FORWARDERS: [&str; 2] = ["127.0.0.4", "127.0.0.6"];

/// The statements name ports, so the SPD tells the classes of one program's datagrams apart.
pub fn policy() -> String {
    let published = "application dnsmasq, dig {\n  network 192.168.1.0/24 protected Names;\n  \
                     network 0.0.0.0/0 trusted;\n  protection Names {\n    localport=53 \
                     remoteport=any encryption mandatory;\n    localport=any remoteport=53 encryption \
                     mandatory;\n    localport=any remoteport=any authentication mandatory;\n  }\n}\n";
    here(published, "Names")
}

fn dnsmasq(host: &Host, settings: &[String]) -> Result<Running, Box<dyn Error>> {
    let words = [
        "/usr/sbin/dnsmasq",
        "--no-daemon",
        "--conf-file=/dev/null",
        "--user=nobody",
        "--pid-file=",
        "--no-resolv",
        "--no-hosts",
        "--cache-size=0",
    ];
    let running = host.spawn(words.into_iter().chain(settings.iter().map(String::as_str)))?;
    Ok(running)
}

/// dig's command for one question: it asks once, and waits for long.
fn question<'a>(at: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = ["dig", at, "+tries=1", "+time=150", "+short"];
    let words = words.iter().chain(more).copied();
    words.chain([NAME]).collect()
}

fn ask(client: &Host, at: &str, more: &[&str]) -> Outcome {
    let answer = client.run(question(&format!("@{at}"), more))?.stdout;
    assert_eq!(answer.trim(), ANSWER, "{} {at} {more:?}", client.name());
    Ok(())
}

/// The datagrams of DNS between two hosts, in the order of the capture.
fn datagrams<'a>(packets: &'a [Packet], server: &Host, client: &Host) -> Vec<&'a Packet> {
    let is_between = |packet: &&Packet| {
        let ends = [packet.source, packet.destination];
        [server, client]
            .iter()
            .all(|host| ends.iter().any(|end| is_of(host, *end)))
    };
    let is_dns = |packet: &&Packet| {
        let is_datagram = packet
            .segment
            .is_some_and(|segment| segment.flags.is_none());
        is_datagram && packet.is_at(PORT)
    };
    packets.iter().filter(is_between).filter(is_dns).collect()
}

/// The first question and the first answer are protected already, whether the client connects its
/// socket or not.
// Threat model: P80
#[test]
fn dns_is_encrypted_from_the_first_datagram() -> Outcome {
    with_hosts(|hosts| {
        let world = &hosts.world;
        let (server, laptop) = (&world.server, &world.laptop);
        let record = format!("--host-record={NAME},{ANSWER}");
        let _names = dnsmasq(server, &["--local=/abc.com/".into(), record])?;
        let mut forwarders = Vec::new();
        for (own, server) in FORWARDERS.iter().zip(addresses(server)) {
            let listen = format!("--listen-address={own}");
            let server = format!("--server={server}");
            let settings = ["--bind-interfaces".into(), listen, server];
            forwarders.push(dnsmasq(laptop, &settings)?);
        }
        for (host, number) in [(server, 1), (laptop, 2)] {
            eventually("the servers of names listen", || {
                let listening = host.run(["ss", "-lunH", "sport = 53"])?.stdout;
                Ok(listening.lines().count() >= number)
            })?;
        }

        let capture = Capture::start(server)?;
        for (forwarder, address) in FORWARDERS.iter().zip(addresses(server)) {
            // The first datagram to this address.
            ask(laptop, forwarder, &[])?;
            let at = address.to_string();
            ask(laptop, &at, &[])?;
            ask(laptop, &at, &["+tcp"])?;
            ask(&world.trusted, &at, &[])?;
            ask(&world.trusted, &at, &[])?;
            ask(&world.trusted, &at, &["+tcp"])?;
        }
        let at = addresses(server).map(|address| format!("@{address}"));
        hosts.others_are_refused(&at.each_ref().map(|at| question(at, &[])))?;
        hosts.wait_for_the_end()?;
        let packets = capture.end(&world.trusted)?;
        for (client, sa) in [(laptop, Some(Sa::Encryption)), (&world.trusted, None)] {
            let seen = datagrams(&packets, server, client);
            let families = addresses(server).len();
            // A question and an answer.
            assert!(seen.len() >= 2 * QUESTIONS.0 * families, "{seen:?}");
            assert!(seen.iter().all(|packet| packet.sa == sa), "{seen:?}");
            for address in addresses(server) {
                let answers = |packet: &&&Packet| packet.source == address;
                let number = seen.iter().filter(answers).count();
                assert_eq!(number, QUESTIONS.0, "{address}: {seen:?}");
            }
            let connections = connections(&packets, server, client);
            assert_eq!(connections.len(), QUESTIONS.1 * families, "{connections:?}");
            for connection in &connections {
                connection.is_whole_and(sa);
            }
        }
        nothing_is_plain(&packets, server, laptop);
        // As DNS writes it.
        assert!(shows(&packets, &world.trusted, "\u{3}www\u{3}abc\u{3}com"));
        assert!(!shows(&packets, laptop, "\u{3}www\u{3}abc\u{3}com"));
        hosts.others_had_no_answer(&packets);
        Ok(())
    })
}
