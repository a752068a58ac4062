//! Real programs under the published policies, with captures of what is on the wire: what is
//! protected, from the first packet to the last, what is refused, and what is left alone.
//!
//! The tests share the hosts, and all blocks are in force at once.
#![forbid(unsafe_code)]

mod capture;
mod dns;
mod ftp;
mod imap;
mod ssh;
mod wire;

use std::error::Error;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use usher_lab::protected::{World, can_protect, json};
use usher_lab::{Daemon, Host, Running, eventual, eventually};

use capture::Packet;

type Outcome = Result<(), Box<dyn Error>>;

/// The only account on the protected hosts.
const ACCOUNT: &str = "alice";

/// The port of the program that no policy governs.
const ECHO: u16 = 9000;

/// The hosts, with everything that runs there for all tests.
struct Hosts {
    world: World,
    /// Without Usher; the policy discards its traffic.
    untrusted: Host,
    _daemons: Vec<Daemon>,
    _echo: Running,
}

/// They end with the process.
static HOSTS: Mutex<Option<Hosts>> = Mutex::new(None);

impl Hosts {
    fn new() -> Result<Self, Box<dyn Error>> {
        let world = World::with_ipv6()?;
        let untrusted = world.lab.host("untrusted")?;
        for host in world.protected() {
            host.add_account(ACCOUNT, 2001)?;
        }
        let mut daemons = world.start_charons()?;
        daemons.extend(world.start_protectors()?);
        world.write_policy("ftp", &ftp::fast())?;
        world.write_policy("ssh", &ssh::policy())?;
        world.write_policy("dns", &dns::policy())?;
        world.write_policy("imap", &imap::policy())?;
        world.apply()?;
        let hosts = Self {
            untrusted,
            _daemons: daemons,
            _echo: world.serve_echo()?,
            world,
        };
        hosts.world.wait_for_sas()?;
        Ok(hosts)
    }

    /// How often the kernel has counted this on the server. Each attempt has a time limit of
    /// `usher`'s, which a slow guest may exceed.
    fn counted(&self, reason: &str) -> Result<u64, Box<dyn Error>> {
        let shown = eventual("the protector answers", || {
            Ok(json(&self.world.server, &["protection", "show"]).ok())
        })?;
        Ok(shown["counters"][reason].as_u64().unwrap_or(0))
    }

    /// Runs a client that the server must not answer, until the server has dropped a packet for
    /// this reason.
    fn is_refused<W: AsRef<OsStr>>(&self, reason: &str, from: &Host, client: &[W]) -> Outcome {
        let before = self.counted(reason)?;
        let mut client = from.spawn(client)?;
        eventually("the server drops its packet", || {
            Ok(self.counted(reason)? > before)
        })?;
        client.end()?;
        Ok(())
    }

    /// Waits until every connection of the server's is closed, the last ACK included.
    fn wait_for_the_end(&self) -> Outcome {
        eventually("all connections are closed", || {
            let words = ["ss", "-tnH", "state", "connected", "exclude", "time-wait"];
            Ok(self.world.server.run(words)?.stdout.is_empty())
        })
    }

    /// Plaintext of these clients from the protected network, and anything from an untrusted one, is
    /// refused; another program is left alone.
    fn others_are_refused<W: AsRef<OsStr>>(&self, clients: &[Vec<W>]) -> Outcome {
        let world = &self.world;
        for client in clients {
            self.is_refused("refused_plain", &world.intruder, client)?;
            self.is_refused("refused_discard", &self.untrusted, client)?;
        }
        for host in [&world.intruder, &self.untrusted, &world.laptop] {
            assert!(world.gets_an_echo(host)?, "{}", host.name());
        }
        Ok(())
    }

    /// The other side of what [`Hosts::others_are_refused`] has done: no answer was on the wire, and
    /// the other program's traffic was there, as it always was.
    fn others_had_no_answer(&self, packets: &[Packet]) {
        let world = &self.world;
        for host in [&world.intruder, &self.untrusted] {
            let answers: Vec<_> = packets
                .iter()
                .filter(|packet| is_of(host, packet.destination) && packet.port().is_some())
                .filter(|packet| !packet.is_at(ECHO))
                .collect();
            assert!(answers.is_empty(), "{}: {answers:?}", host.name());
        }
        for host in [&world.intruder, &self.untrusted, &world.laptop] {
            let mut plain = packets.iter().filter(|packet| packet.sa.is_none());
            let echo = plain.any(|packet| packet.is_at(ECHO) && is_of(host, packet.destination));
            assert!(echo, "{}", host.name());
        }
    }
}

/// Runs a test with the hosts, which the first one makes.
fn with_hosts(test: impl FnOnce(&Hosts) -> Outcome) -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = match &mut *hosts {
        Some(hosts) => hosts,
        none => none.insert(Hosts::new()?),
    };
    test(hosts)
}

/// A host's addresses on the lab's network.
fn addresses(host: &Host) -> [IpAddr; 2] {
    [host.ipv4().into(), host.ipv6().into()]
}

fn is_of(host: &Host, address: IpAddr) -> bool {
    address == host.ipv4() || address == host.ipv6()
}

/// A published policy, with its network replaced by the first hosts of the lab: laptop, server and
/// intruder. `trusted` is elsewhere, and `untrusted` has its own line. The paper has no IPv6.
fn here(published: &str, protection: &str) -> String {
    let from = format!("network 192.168.1.0/24 protected {protection};");
    assert!(published.contains(&from), "{published}");
    let to = format!(
        "network 10.77.0.0/30 protected {protection}; network fd77::/126 protected {protection};\n\
         network 10.77.0.5 untrusted; network fd77::5 untrusted; network ::/0 trusted;"
    );
    published.replace(&from, &to)
}
