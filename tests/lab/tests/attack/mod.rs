//! Shared by the tests of attacks: the mail topology with a hostile client host on it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::error::Error;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use usher_base::ConnectionTuple;
use usher_lab::hostile::{Asked, Channel, Identity, Port, private_key, read_line};
use usher_lab::{ALICE, Daemon, Lab, Mail, PATIENCE};
use usher_proto::ssh_key::PrivateKey;
use usher_proto::{Announcement, Refusal};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The port of the service of the mail topology.
pub const IMAP: u16 = 143;

/// The mail topology, and laptop's host key in the hands of the test.
pub struct Attack {
    pub mail: Mail,
    pub laptop_key: Identity,
}

/// The end of a log when the test began to listen.
pub struct Heard(usize);

impl Attack {
    pub fn new() -> Result<Self> {
        let mail = Lab::mail()?;
        let laptop_key = Identity::of(&mail.laptop)?;
        Ok(Self { mail, laptop_key })
    }

    /// A user's key, read from laptop's signer.
    pub fn user_key(&self, user: &str) -> Result<PrivateKey> {
        let path = format!("/var/lib/usher/keys/{user}");
        Ok(private_key(&self.mail.laptop, &path)?)
    }

    /// The correct request of `user`.
    pub fn asked(&self, user: &str) -> Result<Asked> {
        self.asked_of_length(user, 256)
    }

    pub fn asked_of_length(&self, user: &str, length: u32) -> Result<Asked> {
        let client = self.laptop_key.public();
        let server = &self.mail.mailhost;
        Ok(Asked::right(user, "imap", client, server, IMAP, length)?)
    }

    /// A channel from laptop with laptop's key.
    pub fn channel(&self) -> Result<Channel> {
        let (laptop, mailhost) = (&self.mail.laptop, &self.mail.mailhost);
        Ok(Channel::connect(laptop, mailhost, &self.laptop_key)?)
    }

    /// A port of laptop.
    pub fn port(&self) -> Result<Port> {
        Ok(Port::any(&self.mail.laptop, self.mail.laptop.ipv4())?)
    }

    /// A key of stranger, which makes it a host of mailhost's from the next `usher policy apply` on.
    pub fn add_stranger(&self) -> Result<Identity> {
        let stranger = Identity::fresh();
        let key = stranger.public().to_openssh();
        let address = self.mail.stranger.ipv4().to_string();
        let add = ["usher", "host", "add", "stranger", "--key", &key];
        let command = [&add[..], &["--address", &address]].concat();
        self.mail.mailhost.run(command)?;
        Ok(stranger)
    }

    /// The address of the service.
    pub fn server(&self) -> SocketAddr {
        (self.mail.mailhost.ipv4(), IMAP).into()
    }

    /// The connection from this port to the service.
    pub fn tuple(&self, port: &Port) -> ConnectionTuple {
        ConnectionTuple {
            client: port.address,
            server: self.server(),
        }
    }

    /// The next element for this port.
    pub fn announcement(&self, asked: &mut Asked, port: &Port) -> Result<Announcement> {
        Ok(Announcement {
            element: asked.chain.next().ok_or("the chain is used up")?,
            connection: self.tuple(port),
        })
    }

    /// Connects from the port and requires to be served as `user`.
    pub fn served(&self, port: Port, user: &str) -> Result<TcpStream> {
        let mut stream = port.connect(self.server())?;
        let greeting = read_line(&mut stream)?;
        assert!(
            greeting.starts_with("* PREAUTH") && greeting.contains(&format!("as {user}")),
            "{greeting}"
        );
        Ok(stream)
    }

    /// Connects from the port and requires a RST.
    pub fn reset(&self, port: Port) {
        let outcome = port.connect(self.server());
        match outcome {
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}"),
            Ok(stream) => panic!("{stream:?} was let in"),
        }
    }

    /// Opens a session that must be refused for `reason`. The verifier's log has the true reason, the
    /// answer the disclosed one, and nothing is admitted.
    pub fn refused(
        &self,
        channel: &mut Channel,
        what: &str,
        authenticator: &usher_proto::Authenticator,
        reason: Refusal,
    ) -> Result {
        let heard = listen(&self.mail.verifier)?;
        let port = self.port()?;
        let first = Announcement {
            element: usher_proto::ChainElement {
                position: 1,
                value: [7; 16],
            },
            connection: self.tuple(&port),
        };
        let verdict = channel.open_session(authenticator, first)?;
        assert_eq!(verdict, Err(reason.disclosed()), "{what}");
        heard.reason(&self.mail.verifier, reason, what)?;
        self.reset(port);
        Ok(())
    }

    /// Opens a session that must be granted, connects and requires to be served.
    pub fn granted(
        &self,
        channel: &mut Channel,
        asked: &mut Asked,
        key: &PrivateKey,
    ) -> Result<TcpStream> {
        let port = self.port()?;
        let first = self.announcement(asked, &port)?;
        assert_eq!(channel.open_session(&asked.sign(key)?, first)?, Ok(()));
        self.served(port, asked.statement.user.as_ref())
    }
}

/// alice fetches her mail as a mail program does, through the proxy and all daemons.
pub fn alice_reads(mail: &Mail) -> Result {
    let url = "imap://mailhost/INBOX;MAILINDEX=1";
    let fetch = ["curl", "--silent", "--show-error", "--user", "alice:", url];
    let read = mail.laptop.run_as(ALICE.name, fetch)?;
    assert!(read.stdout.contains(ALICE.subject), "{}", read.stdout);
    Ok(())
}

/// Requires that the connection is still served.
pub fn still_works(stream: &mut TcpStream) -> Result {
    stream.write_all(b"a NOOP\r\n")?;
    let answer = read_line(stream)?;
    assert!(answer.starts_with("a OK"), "{answer}");
    Ok(())
}

/// Listens to a log from here on.
pub fn listen(daemon: &Daemon) -> Result<Heard> {
    Ok(Heard(daemon.log()?.len()))
}

impl Heard {
    /// Waits for a line of the log that contains all of `words`.
    pub fn line(&self, daemon: &Daemon, words: &[&str]) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = daemon.log()?;
            let found = log[self.0..]
                .lines()
                .find(|line| words.iter().all(|word| line.contains(word)));
            if let Some(line) = found {
                return Ok(line.to_owned());
            }
            if Instant::now() > deadline {
                let name = daemon.name();
                return Err(format!("no {words:?} in {name}'s log: {}", &log[self.0..]).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for a refusal with this reason.
    pub fn reason(&self, daemon: &Daemon, reason: Refusal, what: &str) -> Result {
        let word = format!("reason=\"{}\"", reason.name());
        self.line(daemon, &["refused", &word])
            .map_err(|error| format!("{what}: {error}"))?;
        Ok(())
    }
}
