//! OpenSSH: sshd with ssh, sftp and scp.

use std::error::Error;

use usher_lab::Host;
use usher_lab::protected::wait_for_listener;

use crate::capture::{Capture, Sa};
use crate::wire::{connections, nothing_is_plain, shows};
use crate::{ACCOUNT, Outcome, addresses, here, with_hosts};

const CLIENT: &str = include_str!(
    "../../../../crates/protection/usher-protection/tests/applications/published/figure-7-client.policy"
);
const SERVER: &str = include_str!(
    "../../../../crates/protection/usher-protection/tests/applications/published/figure-7-server.policy"
);

const PORT: u16 = 22;
const HOST_KEY: &str = "/etc/ssh/lab_host_key";

/// The greeting of both sides, which SSH itself does not encrypt.
const GREETING: &str = "SSH-2.0-";

/// No host key is known yet, and nobody is there to be asked.
const SETTINGS: &str = "BatchMode yes\nStrictHostKeyChecking accept-new\nConnectTimeout 150\n";

const TEXT: &str = "a recipe for quince jelly\n";

pub fn policy() -> String {
    here(CLIENT, "Enh") + &here(SERVER, "Enh")
}

/// One session of each client.
fn sessions(client: &Host, server: &str) -> Result<usize, Box<dyn Error>> {
    let login = format!("{ACCOUNT}@{server}");
    let got = client.run(["ssh", &login, "id", "-un"])?.stdout;
    assert_eq!(got.trim(), ACCOUNT);
    client.write("/root/batch", "put recipe copied\nget copied again\n")?;
    client.run(["sftp", "-b", "batch", &login])?;
    assert_eq!(client.read("/root/again")?, TEXT);
    let remote = format!("{ACCOUNT}@[{server}]:copied");
    client.run(["scp", &remote, "third"])?;
    assert_eq!(client.read("/root/third")?, TEXT);
    Ok(3)
}

/// Figure 7: authenticated in this network, as it was elsewhere.
// Threat model: P80
#[test]
fn openssh_is_authenticated_from_handshake_to_close() -> Outcome {
    with_hosts(|hosts| {
        let world = &hosts.world;
        let server = &world.server;
        let clients = [&world.laptop, &world.trusted];
        let mut keys = String::new();
        for client in clients {
            client.run(["mkdir", "-m", "700", "/root/.ssh"])?;
            keys += &client.make_key("/root/.ssh/id_ed25519")?;
            client.write("/root/.ssh/config", SETTINGS)?;
            client.write("/root/recipe", TEXT)?;
        }
        server.run_as(ACCOUNT, ["mkdir", "-m", "700", ".ssh"])?;
        let authorized = "cat >.ssh/authorized_keys";
        let write = server.command(["sh", "-c", authorized]).user(ACCOUNT);
        write.input(keys).succeed()?;
        server.make_key(HOST_KEY)?;
        server.run(["mkdir", "-p", "/run/sshd"])?;
        let _sshd = server.spawn(["/usr/sbin/sshd", "-D", "-e", "-h", HOST_KEY])?;
        wait_for_listener(server, PORT)?;

        let capture = Capture::start(server)?;
        let ipv4 = server.ipv4().to_string();
        let mut begun = sessions(&world.laptop, &ipv4)?;
        sessions(&world.trusted, &ipv4)?;
        let login = format!("{ACCOUNT}@{}", server.ipv6());
        world.laptop.run(["ssh", &login, "true"])?;
        begun += 1;
        let logins = addresses(server).map(|address| format!("{ACCOUNT}@{address}"));
        let others = logins.map(|login| ["ssh".to_owned(), login, "true".into()].to_vec());
        hosts.others_are_refused(&others)?;
        hosts.wait_for_the_end()?;
        let packets = capture.end(&world.trusted)?;
        let protected = connections(&packets, server, &world.laptop);
        assert_eq!(protected.len(), begun, "{protected:?}");
        for connection in &protected {
            connection.is_whole_and(Some(Sa::Authentication));
        }
        let plain = connections(&packets, server, &world.trusted);
        assert_eq!(plain.len(), 3, "{plain:?}");
        for connection in &plain {
            connection.is_whole_and(None);
        }
        nothing_is_plain(&packets, server, &world.laptop);
        for client in clients {
            assert!(shows(&packets, client, GREETING), "{}", client.name());
        }
        hosts.others_had_no_answer(&packets);
        Ok(())
    })
}
