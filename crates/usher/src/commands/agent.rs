//! `usher agent`: lets the calling user's ssh-agent sign for the signer, which never speaks to the agent
//! itself. Runs until the signer ends, or another process of the user lends an agent.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use usher::ConnectError;
use usher_base::UserName;
use usher_daemon::packet::{PacketSocket, connect_within};
use usher_local::paths;
use usher_proto::agent::{
    AgentAnswer, MAX_AGENT_ANSWER, MAX_IDENTITIES_ANSWER, answer_length, check_algorithm,
    identities_request, lists, sign_request,
};
use usher_proto::authenticator::Authenticator;
use usher_proto::host_key::HostPublicKey;
use usher_proto::lending::{FromLender, MAX_LENDING_PACKET, ToLender};
use usher_proto::local::LocalRequest;
use usher_proto::refusal::Refusal;
use usher_proto::statement::Statement;

use crate::failure::{At, Failure};
use crate::output::{escaped, tell};

/// How long the agent may take, the touch of a security key included. The signer waits 30 s.
const PATIENCE: Duration = Duration::from_secs(25);

/// Lends the agent at `$SSH_AUTH_SOCK`.
///
/// # Errors
/// When there is no agent or no signer, or the signer does not take the loan.
pub fn run() -> Result<(), Failure> {
    let agent = std::env::var_os("SSH_AUTH_SOCK")
        .map(PathBuf::from)
        .ok_or_else(|| {
            Failure::refused(
                "SSH_AUTH_SOCK, the address of the ssh-agent, is not set; run this in a session \
                 that has an agent, or start one (eval $(ssh-agent))",
            )
        })?;
    // Checked now, not only when the first connection waits.
    connect_within(&agent, PATIENCE).map_err(|error| {
        Failure::Refused(format!(
            "{}: {error}: no ssh-agent answers at SSH_AUTH_SOCK",
            agent.display()
        ))
    })?;
    let no_signer = |error| Failure::Connect(ConnectError::NoSigner(error));
    let signer = PacketSocket::connect(Path::new(paths::SIGNER_APPLICATIONS)).map_err(no_signer)?;
    signer
        .send(&LocalRequest::Lend.encode(), &[])
        .map_err(no_signer)?;
    loop {
        let packet = signer.receive(MAX_LENDING_PACKET).map_err(no_signer)?;
        if packet.bytes.is_empty() {
            return Err(no_signer(io::ErrorKind::UnexpectedEof.into()));
        }
        match ToLender::decode(&packet.bytes) {
            Ok(ToLender::Lent) => {
                tell(&format!(
                    "usher: the agent at {} is lent\n",
                    agent.display()
                ));
                sd_notify::notify(&[sd_notify::NotifyState::Ready]).at("NOTIFY_SOCKET")?;
            }
            Ok(ToLender::Sign {
                public_key,
                statement,
            }) => {
                let signed =
                    Own::look_up().and_then(|own| sign(&agent, &own, &public_key, &statement));
                let answer = match signed {
                    Ok(signature) => FromLender::Signature(signature),
                    Err(reason) => {
                        let reason = reason.to_string();
                        tell(&format!("usher: not signed: {}\n", escaped(&reason)));
                        FromLender::NotSigned
                    }
                };
                signer.send(&answer.encode(), &[]).map_err(no_signer)?;
            }
            Ok(ToLender::Replaced) => {
                tell("usher: another process lends your agent now\n");
                return Ok(());
            }
            Ok(ToLender::Refused(Refusal::NoPrivateKey)) => {
                return Err(Failure::refused(
                    "this host has no registered agent key of this user, or none for a service that \
                     policy permits; an administrator registers one: usher user add NAME \
                     --agent-key FILE.pub",
                ));
            }
            Ok(ToLender::Refused(refusal)) => {
                return Err(Failure::Connect(ConnectError::Refused(refusal)));
            }
            Err(_) => return Err(Failure::Connect(ConnectError::Protocol)),
        }
    }
}

/// The only user and host for which this process signs.
#[derive(Debug)]
struct Own {
    user: UserName,
    host_key: HostPublicKey,
}

impl Own {
    /// The account of this process, and this host's key as it is now.
    fn look_up() -> Result<Self, Failure> {
        let uid = nix::unistd::getuid();
        let account = nix::unistd::User::from_uid(uid).map_err(|error| {
            Failure::Refused(format!("cannot look up the account of uid {uid}: {error}"))
        })?;
        let name = account
            .map(|account| account.name)
            .ok_or_else(|| Failure::Refused(format!("this process's uid {uid} has no account")))?;
        let user = name.parse();
        let user =
            user.map_err(|error| Failure::Refused(format!("the account {name}: {error}")))?;
        let host_key = read_host_key(paths::HOST_PUBLIC_KEY)?;
        Ok(Self { user, host_key })
    }

    /// Whether a key is this host's: its key when this process began, its present key, or its former key,
    /// which the signer uses until it is restarted.
    fn is_host_key(&self, key: &HostPublicKey) -> bool {
        let is_in = |file: &&str| read_host_key(file).is_ok_and(|read| read == *key);
        let files = [paths::HOST_PUBLIC_KEY, paths::FORMER_HOST_PUBLIC_KEY];
        self.host_key == *key || files.iter().any(is_in)
    }

    /// Decodes a statement and checks that it is of this user on this host. A subverted signer, or one of
    /// another host, gets no other signature.
    fn check(&self, statement: &[u8]) -> Result<Statement, Failure> {
        let told = Statement::decode(statement).map_err(|error| {
            let asked = "the signer asks for something that is not a statement";
            Failure::Refused(format!("{asked}: {error}"))
        })?;
        if told.user != self.user {
            return Err(Failure::Refused(format!(
                "the signer asks for a statement of the user {}, but this is the agent of {}",
                told.user, self.user
            )));
        }
        if !self.is_host_key(&told.client_host_key) {
            return Err(Failure::Refused(format!(
                "the signer asks for a statement of another host, with the key {}; this host's key \
                 is {} ({})",
                told.client_host_key.fingerprint(),
                self.host_key.fingerprint(),
                paths::HOST_PUBLIC_KEY
            )));
        }
        Ok(told)
    }
}

fn read_host_key(file: &str) -> Result<HostPublicKey, Failure> {
    let path = Path::new(file);
    let wrong = |error: &dyn Display| {
        let need = "this host's key, which every signed statement names; `usher init` makes it";
        Failure::of_file(path, format_args!("{error}: {need}"))
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    HostPublicKey::from_openssh(text.trim()).map_err(|error| wrong(&error))
}

/// Describes the statement to sign.
fn in_words(statement: &Statement) -> String {
    let minutes = statement.expires.saturating_sub(statement.issued) / 60;
    format!(
        "signing for {} at {}: {} on this host (key {}) opens a session of {} h {} min with it at the \
         host with the key {}",
        statement.service,
        statement.server,
        statement.user,
        statement.client_host_key.fingerprint(),
        minutes / 60,
        minutes % 60,
        statement.server_host_key.fingerprint(),
    )
}

/// Lets the agent sign a statement of this user on this host, and nothing else.
fn sign(agent: &Path, own: &Own, public_key: &[u8], statement: &[u8]) -> Result<Vec<u8>, Failure> {
    let told = own.check(statement)?;
    let touch = if is_security_key(public_key) {
        "; the security key must be touched now"
    } else {
        ""
    };
    tell(&format!("usher: {}{touch}\n", in_words(&told)));
    let data = Authenticator::signed_data(statement).map_err(Failure::refused)?;
    let request = sign_request(public_key, &data);
    match ask_agent(agent, &request, Instant::now() + PATIENCE) {
        Ok(AgentAnswer::Signature(signature)) => {
            check_algorithm(public_key, &signature).map_err(Failure::refused)?;
            Ok(signature)
        }
        Ok(AgentAnswer::Failure) => Err(Failure::refused(why_not(agent, public_key))),
        Err(error) if is_timeout(&error) => {
            let seconds = PATIENCE.as_secs();
            Err(Failure::Refused(format!(
                "the agent has not answered for {seconds} s"
            )))
        }
        Err(error) => Err(Failure::of_file(agent, error)),
    }
}

/// Whether the bytes of a public key belong to a security key, by the name at their beginning. The names of
/// certificates begin in the same way.
fn is_security_key(public_key: &[u8]) -> bool {
    public_key
        .get(4..)
        .is_some_and(|name| name.starts_with(b"sk-"))
}

/// The cause of an agent's refusal, as far as its list of keys shows it.
fn why_not(agent: &Path, public_key: &[u8]) -> &'static str {
    let list = exchange(
        agent,
        &identities_request(),
        MAX_IDENTITIES_ANSWER,
        Instant::now() + PATIENCE,
    );
    match list.map(|list| lists(&list, public_key)) {
        Ok(Ok(true)) => {
            "the agent has the key and refuses to sign with it: if it was added with destination \
             constraints (ssh-add -h), it signs for ssh(1) only: remove it and add it without -h; \
             otherwise the touch or the confirmation (ssh-add -c) was denied, or the agent is locked"
        }
        Ok(Ok(false)) => {
            "the agent does not have the key that `usher user add --agent-key` registered: add it \
             (`ssh-add -l` lists the keys; a locked agent lists none)"
        }
        Ok(Err(_)) | Err(_) => {
            "the agent refuses: `ssh-add -l` must list the key that `usher user add --agent-key` \
             registered"
        }
    }
}

/// Asks for a signature over a new connection, so that a late answer to one question is never taken for the
/// answer to the next.
fn ask_agent(agent: &Path, request: &[u8], until: Instant) -> io::Result<AgentAnswer> {
    let answer = exchange(agent, request, MAX_AGENT_ANSWER, until)?;
    AgentAnswer::decode(&answer).map_err(io::Error::other)
}

/// Sends a request over a new connection, and returns an answer of at most `most` bytes.
fn exchange(agent: &Path, request: &[u8], most: usize, until: Instant) -> io::Result<Vec<u8>> {
    let mut agent = connect_within(agent, PATIENCE)?;
    agent.write_all(request)?;
    let mut prefix = [0; 4];
    read_in_time(&mut agent, &mut prefix, until)?;
    let mut answer = vec![0; answer_length(prefix, most).map_err(io::Error::other)?];
    read_in_time(&mut agent, &mut answer, until)?;
    Ok(answer)
}

/// Fills the buffer before the time limit.
fn read_in_time(agent: &mut UnixStream, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        agent.set_read_timeout(Some(left))?;
        match agent.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of [`ask_agent`] with an agent that answers these bytes and closes.
    fn answered(bytes: &[u8]) -> io::Result<AgentAnswer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let bytes = bytes.to_vec();
        let agent = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            connection.read_exact(&mut [0; 3]).unwrap();
            connection.write_all(&bytes)
        });
        let answer = ask_agent(&path, &[1, 2, 3], Instant::now() + Duration::from_secs(10));
        // The agent may fail to write to a caller that has hung up.
        drop(agent.join().unwrap());
        answer
    }

    #[test]
    fn an_agents_answer_is_read_to_its_end_and_no_further() {
        let signature = AgentAnswer::Signature(vec![9]);
        let good = [0, 0, 0, 6, 14, 0, 0, 0, 1, 9];
        assert_eq!(answered(&good).unwrap(), signature);
        assert_eq!(
            answered(&[&good[..], &[0; 100_000]].concat()).unwrap(),
            signature
        );
        assert_eq!(answered(&[0, 0, 0, 1, 5]).unwrap(), AgentAnswer::Failure);
        for (bad, kind) in [
            (&[][..], io::ErrorKind::UnexpectedEof),
            (&good[..3], io::ErrorKind::UnexpectedEof),
            (&good[..9], io::ErrorKind::UnexpectedEof),
            (&[0, 0, 0, 0], io::ErrorKind::Other),
            (&[0, 0, 0, 1, 6], io::ErrorKind::Other),
            (&[0xff; 10_000], io::ErrorKind::Other),
        ] {
            assert_eq!(answered(bad).unwrap_err().kind(), kind, "{bad:?}");
        }
    }

    #[test]
    fn an_agent_that_is_silent_is_given_up_in_time() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let late = read_in_time(&mut here, &mut [0; 4], Instant::now()).unwrap_err();
        assert!(is_timeout(&late), "{late}");
        let soon = Instant::now() + Duration::from_millis(1);
        let late = read_in_time(&mut here, &mut [0; 4], soon).unwrap_err();
        assert!(is_timeout(&late), "{late}");
        drop(there);
    }

    fn own() -> Own {
        Own {
            user: "alice".parse().unwrap(),
            host_key: HostPublicKey::from_bytes([1; _]),
        }
    }

    fn statement() -> Statement {
        Statement {
            user: "alice".parse().unwrap(),
            service: "imap".parse().unwrap(),
            client_host_key: HostPublicKey::from_bytes([1; _]),
            server_host_key: HostPublicKey::from_bytes([2; _]),
            server: ([10, 77, 0, 2], 143).into(),
            issued: 1_000,
            expires: 1_000 + 8 * 3600 + 90,
            nonce: [3; _],
            chain_anchor: [4; _],
            token_anchor: [5; _],
            chain_length: 64,
            chain_salt: [6; _],
        }
    }

    // Threat model: A59
    #[test]
    fn the_agent_gets_only_statements_of_this_user_and_host() {
        // No agent listens there: asking it is another error.
        let nowhere = Path::new("/nonexistent");
        let said = |statement: &[u8]| {
            let refused = sign(nowhere, &own(), b"key", statement);
            refused.unwrap_err().to_string()
        };
        let none = said(b"SSHSIG");
        assert!(none.contains("not a statement"), "{none}");
        let bobs = Statement {
            user: "bob".parse().unwrap(),
            ..statement()
        };
        let bobs = said(&bobs.encode());
        assert!(
            bobs.contains("user bob") && bobs.contains("agent of alice"),
            "{bobs}"
        );
        let elsewhere = Statement {
            client_host_key: HostPublicKey::from_bytes([9; _]),
            ..statement()
        };
        let elsewhere = said(&elsewhere.encode());
        assert!(elsewhere.contains("another host"), "{elsewhere}");
        let good = said(&statement().encode());
        assert!(good.starts_with("/nonexistent"), "{good}");
    }

    #[test]
    fn what_is_signed_is_said_in_full() {
        let statement = statement();
        let said = in_words(&statement);
        for part in [
            "imap at 10.77.0.2:143",
            "alice",
            "8 h 1 min",
            &statement.client_host_key.fingerprint(),
            &statement.server_host_key.fingerprint(),
        ] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }
}
