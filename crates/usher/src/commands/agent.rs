//! `usher agent`: has the ssh-agent of the user who runs it sign for the signer, which never
//! speaks to the agent itself. Runs until the signer ends, or the user lends another way.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use usher::ConnectError;
use usher_local::packet::PacketSocket;
use usher_local::paths;
use usher_proto::agent::{AgentAnswer, answer_length, sign_request};
use usher_proto::authenticator::Authenticator;
use usher_proto::host_key::HostPublicKey;
use usher_proto::lending::{FromLender, MAX_LENDING_PACKET, ToLender};
use usher_proto::local::LocalRequest;
use usher_proto::name::UserName;
use usher_proto::refusal::Refusal;
use usher_proto::statement::Statement;

use crate::failure::{At, Failure};
use crate::output::{escaped, tell};

/// How long the agent may take, a touch of a security key included. The signer waits 30 s.
const PATIENCE: Duration = Duration::from_secs(25);

/// Lends the agent at `$SSH_AUTH_SOCK`.
///
/// # Errors
/// When there is no agent or no signer, or the signer does not take the loan.
pub fn run() -> Result<(), Failure> {
    let agent = std::env::var_os("SSH_AUTH_SOCK")
        .map(PathBuf::from)
        .ok_or_else(|| {
            Failure::Agent(
                "SSH_AUTH_SOCK is not set, which says where the ssh-agent is: run this in the \
                 session that has one, or start one (eval $(ssh-agent))"
                    .into(),
            )
        })?;
    // Said now, and not when the first connection waits for it.
    connect(&agent).map_err(|error| {
        Failure::Agent(format!(
            "{}: {error}: no ssh-agent answers there; SSH_AUTH_SOCK says where it is",
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
                        tell(&format!("usher: not signed: {}\n", escaped(&reason)));
                        FromLender::NotSigned
                    }
                };
                signer.send(&answer.encode(), &[]).map_err(no_signer)?;
            }
            Ok(ToLender::Replaced) => {
                tell("usher: another process lends an agent of yours from now on\n");
                return Ok(());
            }
            Ok(ToLender::Refused(Refusal::NoPrivateKey)) => {
                return Err(Failure::Host(
                    "no key of an agent is registered for this user on this host, or for nothing \
                     that policy lets the user do; an administrator does that: usher user add NAME \
                     --agent-key FILE.pub"
                        .into(),
                ));
            }
            Ok(ToLender::Refused(refusal)) => {
                return Err(Failure::Connect(ConnectError::Refused(refusal)));
            }
            Err(_) => return Err(Failure::Connect(ConnectError::Protocol)),
        }
    }
}

/// For whom, and from where, is signed here and nowhere else.
#[derive(Debug)]
struct Own {
    user: UserName,
    host_key: HostPublicKey,
}

impl Own {
    /// The account of this process, and this host's key as it is now.
    fn look_up() -> Result<Self, String> {
        let uid = nix::unistd::getuid();
        let account = nix::unistd::User::from_uid(uid)
            .map_err(|error| format!("cannot look up the account of uid {uid}: {error}"))?
            .ok_or_else(|| format!("uid {uid}, of this process, has no account"))?;
        let user = account
            .name
            .parse()
            .map_err(|error| format!("the account {}: {error}", account.name))?;
        let path = paths::HOST_PUBLIC_KEY;
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!(
                "{path}: {error}: this host's key, which has to be in what is signed; `usher init` \
                 makes it"
            )
        })?;
        let host_key = HostPublicKey::from_openssh(text.trim())
            .map_err(|error| format!("{path}: {error}; `usher init` makes it"))?;
        Ok(Self { user, host_key })
    }

    /// The statement, when it is one of this user on this host. A signer that was taken over, or is
    /// another host's, gets no other.
    fn check(&self, statement: &[u8]) -> Result<Statement, String> {
        let told = Statement::decode(statement).map_err(|error| {
            format!("the signer asks for something else than a statement: {error}")
        })?;
        if told.user != self.user {
            return Err(format!(
                "the signer asks for a statement of the user {}, and this is {}'s agent",
                told.user, self.user
            ));
        }
        if told.client_host_key != self.host_key {
            return Err(format!(
                "the signer asks for a statement of another host, with the key {}; this host's is \
                 {} ({})",
                told.client_host_key.fingerprint(),
                self.host_key.fingerprint(),
                paths::HOST_PUBLIC_KEY
            ));
        }
        Ok(told)
    }
}

/// What is signed, in words.
fn in_words(statement: &Statement) -> String {
    let minutes = statement.expires.saturating_sub(statement.issued) / 60;
    format!(
        "signing for {} at {}: that {}, on this host (key {}), opens a session of {} h {} min with it \
         at the host with the key {}",
        statement.service,
        statement.server,
        statement.user,
        statement.client_host_key.fingerprint(),
        minutes / 60,
        minutes % 60,
        statement.server_host_key.fingerprint(),
    )
}

/// Has the agent sign a statement of this user on this host. What is none is not signed, so that the
/// signer gets nothing signed but such authenticators.
fn sign(agent: &Path, own: &Own, public_key: &[u8], statement: &[u8]) -> Result<Vec<u8>, String> {
    let told = own.check(statement)?;
    tell(&format!(
        "usher: {}; a security key wants to be touched now\n",
        in_words(&told)
    ));
    let data = Authenticator::signed_data(statement).map_err(|error| error.to_string())?;
    let answer = ask(
        agent,
        &sign_request(public_key, &data),
        Instant::now() + PATIENCE,
    );
    match answer {
        Ok(AgentAnswer::Signature(signature)) => Ok(signature),
        Ok(AgentAnswer::Failure) => Err(
            "the agent refuses: `ssh-add -l` has to list the key that `usher user add --agent-key` \
             has registered"
                .into(),
        ),
        Err(error) if is_timeout(&error) => {
            Err(format!("the agent has not answered for {} s", PATIENCE.as_secs()))
        }
        Err(error) => Err(format!("{}: {error}", agent.display())),
    }
}

/// One question over a connection of its own: an agent that was late once does not answer the next
/// question with the former one's signature.
fn ask(agent: &Path, request: &[u8], until: Instant) -> io::Result<AgentAnswer> {
    let mut agent = connect(agent)?;
    agent.write_all(request)?;
    let mut prefix = [0; 4];
    read(&mut agent, &mut prefix, until)?;
    let mut answer = vec![0; answer_length(prefix).map_err(io::Error::other)?];
    read(&mut agent, &mut answer, until)?;
    AgentAnswer::decode(&answer).map_err(io::Error::other)
}

/// Connects to the agent. Neither this nor writing waits for ever for one that takes nothing.
fn connect(agent: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(agent)?)?;
    Ok(socket.into())
}

/// Fills the buffer, in the time that is left.
fn read(agent: &mut UnixStream, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
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

    /// What [`ask`] makes of an agent that answers these bytes and closes.
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
        let answer = ask(&path, &[1, 2, 3], Instant::now() + Duration::from_secs(10));
        // Writing to who has hung up is an error that concerns nobody.
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
        let late = read(&mut here, &mut [0; 4], Instant::now()).unwrap_err();
        assert!(is_timeout(&late), "{late}");
        let soon = Instant::now() + Duration::from_millis(1);
        let late = read(&mut here, &mut [0; 4], soon).unwrap_err();
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

    #[test]
    fn nothing_but_a_statement_of_this_user_on_this_host_is_given_to_the_agent() {
        // Nobody listens there: an agent that is asked is another error.
        let nowhere = Path::new("/nonexistent");
        let said = |statement: &[u8]| sign(nowhere, &own(), b"key", statement).unwrap_err();
        let none = said(b"SSHSIG");
        assert!(none.contains("something else"), "{none}");
        let bobs = Statement {
            user: "bob".parse().unwrap(),
            ..statement()
        };
        let bobs = said(&bobs.encode());
        assert!(
            bobs.contains("user bob") && bobs.contains("alice's"),
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
