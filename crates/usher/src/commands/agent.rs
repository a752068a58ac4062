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
use usher_proto::lending::{FromLender, MAX_LENDING_PACKET, ToLender};
use usher_proto::local::LocalRequest;
use usher_proto::refusal::Refusal;
use usher_proto::statement::Statement;

use crate::failure::{At, Failure};

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
                eprintln!("usher: the agent at {} is lent", agent.display());
                sd_notify::notify(&[sd_notify::NotifyState::Ready]).at("NOTIFY_SOCKET")?;
            }
            Ok(ToLender::Sign {
                public_key,
                statement,
            }) => {
                let answer = match sign(&agent, &public_key, &statement) {
                    Ok(signature) => FromLender::Signature(signature),
                    Err(reason) => {
                        eprintln!("usher: not signed: {reason}");
                        FromLender::NotSigned
                    }
                };
                signer.send(&answer.encode(), &[]).map_err(no_signer)?;
            }
            Ok(ToLender::Replaced) => {
                eprintln!("usher: another process lends an agent of yours from now on");
                return Ok(());
            }
            Ok(ToLender::Refused(Refusal::NoPrivateKey)) => {
                return Err(Failure::Host(
                    "no key of an agent is registered for this user on this host; an administrator \
                     does that: usher user add NAME --agent-key FILE.pub"
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

/// Has the agent sign a statement. What is none is not signed, so that the signer gets nothing
/// signed but authenticators.
fn sign(agent: &Path, public_key: &[u8], statement: &[u8]) -> Result<Vec<u8>, String> {
    let told = Statement::decode(statement)
        .map_err(|error| format!("the signer asks for something else than a statement: {error}"))?;
    eprintln!(
        "usher: signing for {} at {}; a security key wants to be touched now",
        told.service, told.server
    );
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

    #[test]
    fn nothing_but_a_statement_is_given_to_the_agent() {
        // Nobody listens there: an agent that was asked would be another error.
        let nowhere = Path::new("/nonexistent");
        let refused = sign(nowhere, b"key", b"SSHSIG").unwrap_err();
        assert!(refused.contains("something else"), "{refused}");
    }
}
