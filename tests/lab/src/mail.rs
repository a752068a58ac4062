//! The standard topology: users on a laptop read their mail on a mail host; a stranger is near.

use crate::daemon::{Daemon, Role};
use crate::error::LabError;
use crate::host::Host;
use crate::topology::Lab;
use crate::waiting::eventually;

/// A user of the mail topology: an account on laptop and mailhost, a key on laptop known on
/// mailhost, a message in a Maildir on mailhost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Account name, the same on both hosts.
    pub name: &'static str,
    /// User id on laptop.
    pub laptop_uid: u32,
    /// User id on mailhost. It differs, because names and keys carry identity and numbers do not.
    pub mailhost_uid: u32,
    /// Subject of the message, unique to this user.
    pub subject: &'static str,
}

/// Permitted.
pub const ALICE: User = User {
    name: "alice",
    laptop_uid: 1001,
    mailhost_uid: 2001,
    subject: "The hive has swarmed",
};
/// Permitted.
pub const BOB: User = User {
    name: "bob",
    laptop_uid: 1002,
    mailhost_uid: 2002,
    subject: "Invoice for 40 lanterns",
};
/// Has accounts, a key and a message like the others. Laptop's policy permits her to ask, and
/// mailhost's policy refuses her.
pub const CAROL: User = User {
    name: "carol",
    laptop_uid: 1003,
    mailhost_uid: 2003,
    subject: "Rehearsal moved to six",
};

/// The address on laptop at which the proxy serves mailhost; `/etc/hosts` there calls it `mailhost`.
const LOOPBACK: &str = "127.0.1.1";

const MAILHOST_POLICY: &str = concat!(
    r#"users mail { member alice, bob; }

service imap {
  # Debian's, unmodified: no dovecot master, auth or login process runs.
  program "#,
    crate::imap!(),
    r#";
  listen 143;
  style connection;
  users mail;
  hosts laptop;
}
"#
);

const LAPTOP_POLICY: &str = r#"users mail { member alice, bob, carol; }

client mail {
  users mail;
  service imap at mailhost port 143;
  protocol imap;
}
"#;

/// The mail topology, with Usher installed, configured through its command line, and running.
#[derive(Debug)]
pub struct Mail {
    /// On laptop: serves unmodified mail programs at `mailhost:143`.
    pub proxy: Daemon,
    /// On laptop.
    pub courier: Daemon,
    /// On laptop.
    pub signer: Daemon,
    /// On mailhost.
    pub verifier: Daemon,
    /// On mailhost.
    pub recorder: Daemon,
    /// On mailhost.
    pub keeper: Daemon,
    /// The users' host.
    pub laptop: Host,
    /// The server.
    pub mailhost: Host,
    /// A host without Usher that mailhost does not know.
    pub stranger: Host,
    /// The last field, because the lab must outlive its daemons.
    pub lab: Lab,
}

impl Lab {
    /// Makes the mail topology; see [`Mail::on`].
    ///
    /// # Errors
    /// As [`Mail::on`].
    pub fn mail() -> Result<Mail, LabError> {
        Mail::on(Self::new()?)
    }
}

impl Mail {
    /// Makes the mail topology on an empty lab.
    ///
    /// # Errors
    /// When Usher has not been built, one of its commands fails, or a daemon does not become ready;
    /// the error carries the output.
    pub fn on(lab: Lab) -> Result<Self, LabError> {
        let laptop = lab.host("laptop")?;
        let mailhost = lab.host("mailhost")?;
        let stranger = lab.host("stranger")?;
        for host in [&laptop, &mailhost] {
            // Report a missing build, instead of a shell's "not found".
            host.program("usher")?;
            host.run(["usher", "init", "--name", host.name()])?;
        }
        for user in [ALICE, BOB, CAROL] {
            add_user(&laptop, &mailhost, user)?;
        }
        for here in [&laptop, &mailhost] {
            for known in [&laptop, &mailhost] {
                add_host(here, known)?;
            }
        }
        laptop.write("/etc/usher/policy.d/mail.policy", LAPTOP_POLICY)?;
        mailhost.write("/etc/usher/policy.d/mail.policy", MAILHOST_POLICY)?;
        laptop.write(
            "/etc/hosts",
            format!("127.0.0.1 localhost\n{LOOPBACK} mailhost\n"),
        )?;
        apply(&laptop, &mailhost)?;
        Ok(Self {
            keeper: mailhost.start_daemon(Role::Keeper)?,
            recorder: mailhost.start_daemon(Role::Recorder)?,
            verifier: mailhost.start_daemon(Role::Verifier)?,
            signer: laptop.start_daemon(Role::Signer)?,
            courier: laptop.start_daemon(Role::Courier)?,
            proxy: laptop.start_daemon(Role::Proxy)?,
            laptop,
            mailhost,
            stranger,
            lab,
        })
    }

    /// Applies the policies written on laptop and mailhost.
    ///
    /// # Errors
    /// When a policy is refused, with the output.
    pub fn apply(&self) -> Result<(), LabError> {
        apply(&self.laptop, &self.mailhost)
    }

    /// Adds a policy file with this name on mailhost, the server, and on laptop, the client. Applies
    /// both.
    ///
    /// # Errors
    /// When a policy is refused, with the output.
    pub fn add_policies(
        &self,
        name: &str,
        server: impl AsRef<[u8]>,
        client: impl AsRef<[u8]>,
    ) -> Result<(), LabError> {
        let path = format!("/etc/usher/policy.d/{name}.policy");
        self.mailhost.write(&path, server)?;
        self.laptop.write(&path, client)?;
        self.apply()
    }

    /// Waits until the courier has a connection to a verifier, which may be stopped: its kernel takes it.
    ///
    /// # Errors
    /// When it never has one.
    pub fn wait_until_courier_connects(&self) -> Result<(), Box<dyn std::error::Error>> {
        let ss = ["ss", "-Htn", "state", "established", "dport", "= :3440"];
        eventually("the courier has a connection", || {
            Ok(!self.laptop.run(ss)?.stdout.is_empty())
        })
    }
}

fn apply(laptop: &Host, mailhost: &Host) -> Result<(), LabError> {
    for host in [laptop, mailhost] {
        host.run(["usher", "policy", "apply"])?;
    }
    Ok(())
}

/// Makes a user known on both hosts: accounts, a key by ssh-keygen, a message.
fn add_user(laptop: &Host, mailhost: &Host, user: User) -> Result<(), LabError> {
    let User {
        name,
        laptop_uid,
        mailhost_uid,
        subject,
    } = user;
    laptop.add_account(name, laptop_uid)?;
    mailhost.add_account(name, mailhost_uid)?;

    let key = format!("/home/{name}/.ssh/id_ed25519");
    laptop.run_as(name, ["mkdir", "-m", "700", ".ssh"])?;
    let comment = format!("{name}@laptop");
    laptop.run_as(
        name,
        [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            &comment,
            "-f",
            &key,
        ],
    )?;
    laptop.run(["usher", "user", "add", name, "--private-key", &key])?;

    let public = format!("/root/{name}.pub");
    mailhost.write(&public, laptop.read(format!("{key}.pub"))?)?;
    mailhost.run(["usher", "user", "add", name, "--public-key", &public])?;

    let deliver = "mkdir -p Maildir/new Maildir/cur Maildir/tmp && cat >Maildir/new/1.1.mailhost";
    mailhost
        .command(["sh", "-c", deliver])
        .user(name)
        .input(format!(
            "From: Postmaster <postmaster@mailhost>\n\
             To: {name}@mailhost\n\
             Subject: {subject}\n\
             Date: Fri, 01 Aug 2008 12:00:00 +0000\n\
             Message-ID: <1.{name}@mailhost>\n\
             \n\
             For {name} only.\n"
        ))
        .succeed()?;
    Ok(())
}

impl Host {
    /// Prepares a host that knows no other one: its keys, and a policy in force that names it.
    ///
    /// # Errors
    /// When a command refuses.
    pub fn init_alone(&self) -> Result<(), LabError> {
        self.run(["usher", "init", "--name", self.name()])?;
        add_host(self, self)?;
        self.run(["usher", "policy", "apply"])?;
        Ok(())
    }

    /// Leaves the hosts that are known here their IPv4 address only, for those who read or stop nothing else
    /// on the wire: of two addresses a connection takes the one that answers first.
    ///
    /// # Errors
    /// When a command refuses.
    pub fn use_ipv4_only(&self) -> Result<(), LabError> {
        let edit = "cd /etc/usher/policy.d; grep -q ', fd77::' host-*.policy; \
                    sed -i 's/, fd77::[0-9a-f]*;/;/' host-*.policy";
        self.run(["sh", "-e", "-c", edit])?;
        self.run(["usher", "policy", "apply"])?;
        Ok(())
    }

    /// Makes another host known here, with its keys and both its addresses. No policy is applied.
    ///
    /// # Errors
    /// When a command refuses.
    pub fn know(&self, other: &Self) -> Result<(), LabError> {
        add_host(self, other)
    }
}

/// Makes the host `known` known on `here`.
fn add_host(here: &Host, known: &Host) -> Result<(), LabError> {
    let key = known.read("/etc/usher/host_key.pub")?;
    let (ipv4, ipv6) = (known.ipv4().to_string(), known.ipv6().to_string());
    let ike_key = known.read("/etc/usher/ike/key.pub")?;
    let mut arguments = vec!["usher", "host", "add", known.name(), "--key", key.trim()];
    arguments.extend(["--ike-key", ike_key.trim()]);
    arguments.extend(["--address", &ipv4, "--address", &ipv6]);
    if (here.name(), known.name()) == ("laptop", "mailhost") {
        arguments.extend(["--loopback", LOOPBACK]);
    }
    here.run(arguments)?;
    Ok(())
}
