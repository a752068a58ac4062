//! vsftpd with lftp and curl: passive and active, IPv4 and IPv6.

use std::error::Error;
use std::fs;
use std::net::IpAddr;

use usher_lab::protected::{wait_for_listener, xfrm_counter};
use usher_lab::{Host, PATIENCE, Running, eventually};

use crate::capture::{Capture, Packet, Sa};
use crate::wire::{connections, nothing_is_plain, shows};
use crate::{ACCOUNT, Hosts, Outcome, addresses, here, is_of, with_hosts};

const SECURE: &str = include_str!(
    "../../../../crates/protection/usher-protection/tests/applications/published/figure-9-secure.policy"
);
const FAST: &str = include_str!(
    "../../../../crates/protection/usher-protection/tests/applications/published/figure-9-fast.policy"
);

const OPTIONAL_CLIENT: &str = include_str!(
    "../../../../crates/protection/usher-protection/tests/applications/published/figure-4-ftp.policy"
);
const OPTIONAL_SERVER: &str = include_str!(
    "../../../../crates/protection/usher-protection/tests/applications/published/figure-4-vsftpd.policy"
);

const PASSWORD: &str = "horse41battery";

/// Two hosts' files.
const SERVED: &str = "the ledger of the cooperative, page 12\n";
const UPLOADED: &str = "minutes of the meeting, draft 3\n";

/// Fills one packet, of a length that no other has.
const LETTERS: &str = "letters";
const LENGTH: usize = 1200;

/// Debian's settings, but for what a session may write, and that it begins with a password.
const SETTINGS: &str = "listen=NO\nlisten_ipv6=YES\nbackground=NO\nanonymous_enable=NO\n\
                        local_enable=YES\nwrite_enable=YES\nconnect_from_port_20=YES\n\
                        chroot_local_user=YES\nallow_writeable_chroot=YES\n\
                        secure_chroot_dir=/run/vsftpd/empty\npam_service_name=vsftpd\n\
                        xferlog_enable=NO\n";

const CONTROL: u16 = 21;
const ACTIVE_DATA: u16 = 20;
/// The port of a copy of the server, and one at which nothing listens.
const OTHER: u16 = 2121;
const CLOSED: u16 = 2122;

pub fn secure() -> String {
    here(
        &SECURE.replace("vsftpd, ftp", "vsftpd, lftp, curl"),
        "Secure",
    )
}

pub fn fast() -> String {
    here(&FAST.replace("vsftpd, ftp", "vsftpd, lftp, curl"), "Fast")
}

/// Figure 4: the client demands protection, and the server protects what can be.
fn optional() -> String {
    OPTIONAL_CLIENT.replace("application ftp", "application lftp, curl") + OPTIONAL_SERVER
}

/// How the data connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The client connects.
    Passive,
    /// The server connects, from port 20.
    Active,
}

/// Puts a policy in force, and starts the server.
fn serve(hosts: &Hosts, policy: &str) -> Result<Running, Box<dyn Error>> {
    let (world, server) = (&hosts.world, &hosts.world.server);
    world.write_policy("ftp", policy)?;
    world.apply()?;
    server.write("/etc/vsftpd.conf", SETTINGS)?;
    server.run(["mkdir", "-p", "/run/vsftpd/empty"])?;
    server
        .command(["chpasswd"])
        .input(format!("{ACCOUNT}:{PASSWORD}\n"))
        .succeed()?;
    server.write(format!("/home/{ACCOUNT}/served"), SERVED)?;
    server.write(format!("/home/{ACCOUNT}/{LETTERS}"), "A".repeat(LENGTH))?;
    for host in [&world.laptop, &world.trusted] {
        host.write("/root/uploaded", UPLOADED)?;
    }
    let running = server.spawn(["/usr/sbin/vsftpd", "/etc/vsftpd.conf"])?;
    wait_for_listener(server, CONTROL)?;
    Ok(running)
}

/// A URL's part.
fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// lftp's command for a session that reads a file and writes one.
fn lftp(address: IpAddr, mode: Mode, commands: &str) -> [String; 3] {
    let passive = match mode {
        Mode::Passive => "on",
        Mode::Active => "off",
    };
    let script = format!(
        "set ftp:ssl-allow no; set net:max-retries 1; set net:timeout 150; set ftp:passive-mode \
         {passive}; open -u {ACCOUNT},{PASSWORD} ftp://{}; {commands}; quit",
        bracketed(address)
    );
    ["lftp".into(), "-c".into(), script]
}

/// curl's command for a session that reads a file in passive mode.
fn curl(address: IpAddr, port: u16) -> Vec<String> {
    let user = format!("{ACCOUNT}:{PASSWORD}");
    let url = format!("ftp://{}:{port}/served", bracketed(address));
    ["curl", "-sS", "-m", "150", "-u", &user, &url]
        .map(str::to_owned)
        .to_vec()
}

/// Reads a file and writes one.
fn read_and_write(server: &Host, client: &Host, address: IpAddr, mode: Mode) -> Outcome {
    let got = client.run(lftp(address, mode, "cat served; put uploaded"))?;
    assert_eq!(got.stdout, SERVED, "lftp {mode:?} {address}");
    let uploaded = server.path(format!("/home/{ACCOUNT}/uploaded"));
    assert_eq!(
        fs::read_to_string(&uploaded)?,
        UPLOADED,
        "lftp {mode:?} {address}"
    );
    fs::remove_file(&uploaded)?;
    Ok(())
}

/// A session of curl's, which reads a file.
fn read(client: &Host, address: IpAddr, mode: Mode) -> Outcome {
    let mut words = curl(address, CONTROL);
    if mode == Mode::Active {
        words.extend(["--ftp-port".into(), "-".into()]);
    }
    let got = client.run(words)?.stdout;
    assert_eq!(got, SERVED, "curl {mode:?} {address}");
    Ok(())
}

/// Sessions of both clients in both modes; how many control connections that took. With IPv6 each
/// client has one mode: the commands differ, and the sockets do not.
fn sessions(server: &Host, client: &Host, address: IpAddr) -> Result<usize, Box<dyn Error>> {
    read_and_write(server, client, address, Mode::Active)?;
    read(client, address, Mode::Passive)?;
    if address.is_ipv6() {
        return Ok(2);
    }
    read_and_write(server, client, address, Mode::Passive)?;
    read(client, address, Mode::Active)?;
    Ok(4)
}

/// A capture shows every connection of the laptop's sessions, whole and by its class.
fn all_are_protected(hosts: &Hosts, packets: &[Packet], control: usize, data_sa: Sa) {
    let (server, laptop) = (&hosts.world.server, &hosts.world.laptop);
    let (mut controls, mut passive, mut active) = (0, 0, 0);
    for connection in connections(packets, server, laptop) {
        let (number, sa) = match connection.ports.0 {
            CONTROL => (&mut controls, Sa::Encryption),
            ACTIVE_DATA => (&mut active, data_sa),
            _ => (&mut passive, data_sa),
        };
        *number += 1;
        connection.is_whole_and(Some(sa));
    }
    assert_eq!(controls, control, "{packets:?}");
    assert!(passive > 0 && active > 0, "{packets:?}");
    nothing_is_plain(packets, server, laptop);
}

/// All sessions of both hosts under a policy, with everything that is refused beside them.
fn run_sessions(hosts: &Hosts, data_sa: Sa) -> Result<Vec<Packet>, Box<dyn Error>> {
    let world = &hosts.world;
    let server = &world.server;
    let capture = Capture::start(server)?;
    let mut control = 0;
    for address in addresses(server) {
        control += sessions(server, &world.laptop, address)?;
        read_and_write(server, &world.trusted, address, Mode::Passive)?;
    }
    hosts.others_are_refused(&addresses(server).map(|address| curl(address, CONTROL)))?;
    hosts.wait_for_the_end()?;
    let packets = capture.end(&world.trusted)?;
    all_are_protected(hosts, &packets, control, data_sa);
    hosts.others_had_no_answer(&packets);
    // The capture would show it.
    for text in [PASSWORD, SERVED, UPLOADED] {
        assert!(shows(&packets, &world.trusted, text), "{text}");
    }
    assert!(!shows(&packets, &world.laptop, PASSWORD));
    Ok(packets)
}

/// Figure 9, "secure": everything is encrypted, from the first SYN to the last ACK.
// Threat model: P80
#[test]
fn ftp_under_the_secure_policy_is_encrypted() -> Outcome {
    with_hosts(|hosts| {
        let _vsftpd = serve(hosts, &secure())?;
        let packets = run_sessions(hosts, Sa::Encryption)?;
        for text in [SERVED, UPLOADED] {
            assert!(!shows(&packets, &hosts.world.laptop, text), "{text}");
        }
        a_copy_of_the_server_is_left_alone(hosts)
    })
}

/// A copy is another program: plaintext gets its answers. The protected host's clients are governed,
/// so their connections to it are protected by the mark of the SYN alone, and so is the reset of a
/// closed port.
// Threat model: P38
fn a_copy_of_the_server_is_left_alone(hosts: &Hosts) -> Outcome {
    let world = &hosts.world;
    let server = &world.server;
    server.run(["cp", "/usr/sbin/vsftpd", "/run/ftpd"])?;
    server.write("/run/ftpd.conf", format!("{SETTINGS}listen_port={OTHER}\n"))?;
    let _other = server.spawn(["/run/ftpd", "/run/ftpd.conf"])?;
    wait_for_listener(server, OTHER)?;
    let address: IpAddr = server.ipv4().into();
    for client in [&world.intruder, &hosts.untrusted, &world.laptop] {
        let got = client.run(curl(address, OTHER))?.stdout;
        assert_eq!(got, SERVED, "{}", client.name());
    }
    let refused = world.laptop.command(curl(address, CLOSED)).run()?;
    assert_eq!(refused.status.code(), Some(7), "{}", refused.stderr);
    Ok(())
}

/// Figure 9, "fast": the control connection is encrypted, and the data can be read, not changed.
#[test]
fn ftp_under_the_fast_policy_has_authenticated_data() -> Outcome {
    with_hosts(|hosts| {
        let _vsftpd = serve(hosts, &fast())?;
        let packets = run_sessions(hosts, Sa::Authentication)?;
        for text in [SERVED, UPLOADED] {
            assert!(shows(&packets, &hosts.world.laptop, text), "{text}");
        }
        changed_data_is_refused(hosts)
    })
}

/// Figure 4: other hosts are served as before, and the host that has protected its traffic once is
/// held to it.
#[test]
fn ftp_under_an_optional_policy_serves_both() -> Outcome {
    with_hosts(|hosts| {
        let world = &hosts.world;
        let (server, laptop) = (&world.server, &world.laptop);
        let _vsftpd = serve(hosts, &optional())?;
        let capture = Capture::start(server)?;
        let address: IpAddr = server.ipv4().into();
        let control = sessions(server, laptop, address)?;
        read_and_write(server, &world.trusted, address, Mode::Passive)?;
        // Another program of the protected host, which no policy governs there.
        laptop.run(["cp", "/usr/bin/curl", "/run/curl"])?;
        let mut plain = curl(address, CONTROL);
        plain[0] = "/run/curl".into();
        hosts.is_refused("refused_plain", laptop, &plain)?;
        hosts.wait_for_the_end()?;
        let packets = capture.end(&world.trusted)?;
        let is_plain = |packet: &Packet| packet.sa.is_none() && packet.is_at(CONTROL);
        let (refused, rest): (Vec<_>, Vec<_>) = packets
            .into_iter()
            .partition(|packet| is_plain(packet) && is_of(laptop, packet.source));
        assert!(!refused.is_empty());
        // So it had no answer.
        all_are_protected(hosts, &rest, control, Sa::Authentication);
        for connection in connections(&rest, server, &world.trusted) {
            connection.is_whole_and(None);
        }
        assert!(shows(&rest, &world.trusted, SERVED));
        Ok(())
    })
}

/// A changed letter of the file passes TCP's checksum, so the trusted host takes it for the file; the
/// protected host refuses it, and gets the file once nothing is changed any more.
// Threat model: P80
fn changed_data_is_refused(hosts: &Hosts) -> Outcome {
    let world = &hosts.world;
    let address: IpAddr = world.server.ipv4().into();
    let whole = "A".repeat(LENGTH) + "\n";
    let client = lftp(address, Mode::Passive, &format!("cat {LETTERS}; echo"));
    change_on_the_way(&world.trusted)?;
    let got = world.trusted.run(&client)?.stdout;
    change_nothing(&world.trusted)?;
    assert_eq!(got.replacen("AB", "AA", 1).replacen("A@", "AA", 1), whole);
    assert_ne!(got, whole, "the change is one that TCP does not see");

    change_on_the_way(&world.laptop)?;
    let before = forged(&world.laptop)?;
    let mut transfer = world.laptop.spawn(&client)?;
    eventually("the kernel refuses the changed packet", || {
        Ok(forged(&world.laptop)? > before)
    })?;
    assert!(!transfer.has_ended()?, "it waits for its data");
    change_nothing(&world.laptop)?;
    assert_eq!(transfer.read_past("A\n", PATIENCE)?, whole);
    Ok(())
}

/// Changes two letters of packets that come to a host and have the file's length, as somebody on
/// the way could: the checksum of TCP stays right.
fn change_on_the_way(host: &Host) -> Outcome {
    host.run(["tc", "qdisc", "add", "dev", "eth0", "clsact"])?;
    let filter = "filter add dev eth0 ingress protocol ip u32 match u16 0x0400 0xfc00 at 2 action \
                  pedit munge offset 200 u16 set 0x4142 munge offset 202 u16 set 0x4140";
    host.run(["tc"].into_iter().chain(filter.split(' ')))?;
    Ok(())
}

fn change_nothing(host: &Host) -> Outcome {
    host.run(["tc", "qdisc", "del", "dev", "eth0", "clsact"])?;
    Ok(())
}

/// How many packets the kernel has refused because an SA's authentication failed.
fn forged(host: &Host) -> Result<u64, Box<dyn Error>> {
    xfrm_counter(host, "XfrmInStateProtoError")
}
