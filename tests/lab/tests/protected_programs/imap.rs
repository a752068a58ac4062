//! dovecot with mbsync: the program that listens is not the one that accepts, nor the one that serves.

use std::error::Error;
use std::net::IpAddr;

use usher_lab::Host;
use usher_lab::protected::wait_for_listener;

use crate::capture::{Capture, Sa};
use crate::wire::{connections, nothing_is_plain, shows};
use crate::{ACCOUNT, Outcome, addresses, ftp, here, with_hosts};

const PORT: u16 = 143;
const PASSWORD: &str = "quince17jelly";
const SUBJECT: &str = "The hive has swarmed";

/// A mail server that logs in with a password in the clear: the protection is IPsec's.
const SETTINGS: &str = "protocols = imap\nlisten = *, ::\nssl = no\nbase_dir = /run/dovecot\n\
                        disable_plaintext_auth = no\nlog_path = /dev/stderr\n\
                        mail_location = maildir:~/Maildir\n\
                        passdb {\n  driver = static\n  args = password=quince17jelly\n}\n\
                        userdb {\n  driver = passwd\n}\n";

/// The same in dovecot 2.4's words.
const SETTINGS_2_4: &str = "dovecot_config_version = 2.4.0\ndovecot_storage_version = 2.4.0\n\
                            protocols = imap\nlisten = *, ::\nssl = no\n\
                            base_dir = /run/dovecot\nauth_allow_cleartext = yes\n\
                            log_path = /dev/stderr\nmail_driver = maildir\n\
                            mail_path = ~/Maildir\n\
                            passdb static {\n  password = quince17jelly\n}\n\
                            userdb passwd {\n}\n";

pub fn policy() -> String {
    let published = "application dovecot, mbsync {\n  network 192.168.1.0/24 protected Mail;\n  \
                     network 0.0.0.0/0 trusted;\n  protection Mail { localport=any remoteport=any \
                     encryption mandatory; }\n}\n";
    here(published, "Mail")
}

/// Fetches the mail into a new folder. Not compressed, as dovecot 2.4 offers: the capture must be able to show it.
fn fetch(client: &Host, address: IpAddr) -> Outcome {
    let settings = format!(
        "IMAPAccount mail\nHost {address}\nUser {ACCOUNT}\nPass {PASSWORD}\nSSLType None\n\
         AuthMechs LOGIN\nDisableExtension COMPRESS=DEFLATE\n\nIMAPStore far\nAccount mail\n\nMaildirStore near\nPath /root/mail/\n\
         Inbox /root/mail/inbox\n\nChannel mail\nFar :far:\nNear :near:\nPatterns INBOX\nSync Pull\n\
         Create Near\nSyncState *\n"
    );
    client.write("/root/.mbsyncrc", settings)?;
    client.run(["rm", "-rf", "/root/mail"])?;
    client.run(["mkdir", "/root/mail"])?;
    client.run(["mbsync", "-a"])?;
    let got = client
        .run(["grep", "-rh", "^Subject:", "/root/mail/inbox"])?
        .stdout;
    assert_eq!(got.trim(), format!("Subject: {SUBJECT}"));
    Ok(())
}

fn deliver(server: &Host) -> Result<(), Box<dyn Error>> {
    let deliver = "mkdir -p Maildir/new Maildir/cur Maildir/tmp && cat >Maildir/new/1.1.server";
    let message = format!("From: a@server\nTo: {ACCOUNT}@server\nSubject: {SUBJECT}\n\nHello.\n");
    let command = server.command(["sh", "-c", deliver]).user(ACCOUNT);
    command.input(message).succeed()?;
    Ok(())
}

/// Mandatory encryption for the password and the mail of unmodified programs.
// Threat model: P80
#[test]
fn imap_is_encrypted_from_handshake_to_close() -> Outcome {
    with_hosts(|hosts| {
        let world = &hosts.world;
        let server = &world.server;
        deliver(server)?;
        let settings = server.dovecot_settings(SETTINGS, SETTINGS_2_4)?;
        server.write("/etc/dovecot-lab.conf", settings)?;
        let _dovecot = server.spawn(["/usr/sbin/dovecot", "-F", "-c", "/etc/dovecot-lab.conf"])?;
        wait_for_listener(server, PORT)?;

        // A client of another class than the server's.
        world.write_policy("ftp", &ftp::fast())?;
        world.apply()?;
        let curl = |address: IpAddr| -> Vec<String> {
            let url = match address {
                IpAddr::V4(address) => format!("imap://{address}/INBOX"),
                IpAddr::V6(address) => format!("imap://[{address}]/INBOX"),
            };
            let user = format!("{ACCOUNT}:{PASSWORD}");
            let words = ["curl", "-sS", "-m", "150", "-u", &user, &url];
            words.map(str::to_owned).to_vec()
        };
        hosts.is_refused("refused_class", &world.laptop, &curl(server.ipv4().into()))?;

        let capture = Capture::start(server)?;
        for address in addresses(server) {
            fetch(&world.laptop, address)?;
            fetch(&world.trusted, address)?;
        }
        hosts.others_are_refused(&addresses(server).map(curl))?;
        hosts.wait_for_the_end()?;
        let packets = capture.end(&world.trusted)?;
        for (client, sa) in [
            (&world.laptop, Some(Sa::Encryption)),
            (&world.trusted, None),
        ] {
            let connections = connections(&packets, server, client);
            assert_eq!(
                connections.len(),
                addresses(server).len(),
                "{connections:?}"
            );
            for connection in &connections {
                connection.is_whole_and(sa);
            }
        }
        nothing_is_plain(&packets, server, &world.laptop);
        for text in [PASSWORD, SUBJECT] {
            assert!(shows(&packets, &world.trusted, text), "{text}");
            assert!(!shows(&packets, &world.laptop, text), "{text}");
        }
        hosts.others_had_no_answer(&packets);
        Ok(())
    })
}
