//! Tells an SMTP server who the user is, by its command XCLIENT (Postfix's XCLIENT_README), before the client's
//! first command.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the server may take for a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// Limit of a reply, in bytes.
const REPLY: usize = 8192;

/// The reason why the server does not know the user.
#[derive(Debug, thiserror::Error)]
pub enum XclientError {
    #[error(
        "the server does not take XCLIENT: `{reply}`; smtpd_authorized_xclient_hosts must have 127.0.0.1, and \
         smtpd_tls_security_level must not be `encrypt`"
    )]
    Refused { reply: String },
    #[error("the server's reply is not SMTP, or has more than {REPLY} bytes")]
    NoReply,
    #[error("the server has not answered within {} seconds", PATIENCE.as_secs())]
    Late,
    #[error("the server broke off: {0}")]
    Io(#[from] io::Error),
}

/// The server's reply for the client.
#[derive(Debug)]
pub enum Said {
    /// The server knows the user, and greets the client.
    Greeting(Vec<u8>),
    /// The server serves no client, or not this one. It may not know the user, so it gets nothing more.
    Refusal(Vec<u8>),
}

/// Tells the server who has connected.
///
/// # Errors
/// When the server does not take XCLIENT, does not speak SMTP, breaks off or is silent.
pub async fn introduce(
    server: &mut UnixStream,
    user: &str,
    client: SocketAddr,
) -> Result<Said, XclientError> {
    let greeting = reply(server).await?;
    if !is_greeting(&greeting) {
        return Ok(Said::Refusal(greeting));
    }
    server.write_all(command(user, client).as_bytes()).await?;
    let reply = reply(server).await?;
    // By these codes the server rejects the command. Other replies concern the client, who gets them.
    let is_not_taken = [&b"50"[..], b"530", b"550"]
        .iter()
        .any(|code| reply.starts_with(code));
    if is_not_taken {
        let reply = String::from_utf8_lossy(&reply).trim_end().to_owned();
        return Err(XclientError::Refused { reply });
    }
    Ok(if is_greeting(&reply) {
        Said::Greeting(reply)
    } else {
        Said::Refusal(reply)
    })
}

fn is_greeting(reply: &[u8]) -> bool {
    reply.starts_with(b"220")
}

/// The command, with all attributes of a client: for one left out, the server would take this process's.
fn command(user: &str, client: SocketAddr) -> String {
    let family = match client.ip().to_canonical() {
        IpAddr::V4(_) => "",
        IpAddr::V6(_) => "IPV6:",
    };
    format!(
        "XCLIENT NAME=[UNAVAILABLE] ADDR={family}{} PORT={} LOGIN={}\r\n",
        client.ip().to_canonical(),
        client.port(),
        xtext(user)
    )
}

/// The encoding of a value (RFC 3461, section 4).
fn xtext(value: &str) -> String {
    let mut encoded = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_graphic() && !b"+=".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String never fails.
            let _ = write!(encoded, "+{byte:02X}");
        }
    }
    encoded
}

/// Reads one reply, of one or several lines. The server sends nothing more without another command.
async fn reply(server: &mut UnixStream) -> Result<Vec<u8>, XclientError> {
    let read = async {
        let mut reply = Vec::new();
        while !is_whole(&reply) {
            if reply.len() >= REPLY || server.read_buf(&mut reply).await? == 0 {
                return Err(XclientError::NoReply);
            }
        }
        Ok(reply)
    };
    timeout(PATIENCE, read)
        .await
        .map_err(|_| XclientError::Late)?
}

/// Whether a reply's last line is here: three digits, then no hyphen (RFC 5321, section 4.2.1).
fn is_whole(reply: &[u8]) -> bool {
    let Some(lines) = reply.strip_suffix(b"\r\n") else {
        return false;
    };
    let last = lines.rsplit(|&byte| byte == b'\n').next().unwrap_or(lines);
    last.len() >= 3 && last[..3].iter().all(u8::is_ascii_digit) && last.get(3) != Some(&b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_everything_that_a_server_may_believe() {
        let said = command("alice", "10.0.0.2:49153".parse().unwrap());
        let all = "XCLIENT NAME=[UNAVAILABLE] ADDR=10.0.0.2 PORT=49153 LOGIN=alice\r\n";
        assert_eq!(said, all);
        let said = command("a+b@corp.example", "[fd00::2]:1".parse().unwrap());
        assert!(
            said.contains(" ADDR=IPV6:fd00::2 PORT=1 LOGIN=a+2Bb@corp.example\r\n"),
            "{said}"
        );
        let said = command("alice", "[::ffff:10.0.0.2]:1".parse().unwrap());
        assert!(said.contains(" ADDR=10.0.0.2 "), "{said}");
        assert_eq!(xtext("a b=\r\n"), "a+20b+3D+0D+0A");
    }

    #[test]
    fn a_reply_ends_with_a_line_without_hyphen() {
        for (reply, whole) in [
            (&b"220 mail ESMTP\r\n"[..], true),
            (b"220-mail\r\n220 ESMTP\r\n", true),
            (b"220\r\n", true),
            (b"220-mail\r\n", false),
            (b"220 mail ESMTP", false),
            (b"220 mail\n", false),
            (b"hello\r\n", false),
            (b"\r\n", false),
            (b"", false),
        ] {
            assert_eq!(is_whole(reply), whole, "{reply:?}");
        }
    }
}
