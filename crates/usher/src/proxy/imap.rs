//! IMAP clients that insist on LOGIN.
//!
//! A user-based IMAP server knows its user before the first byte and greets with PREAUTH
//! (RFC 9051, section 7.1.4). Many mail programs still want to log in. This filter stands between
//! such a program and the server until the program has logged in: it greets with OK, answers
//! LOGIN and AUTHENTICATE PLAIN itself, throws the password away, and then lets the bytes through.
//! A program that sends any other command is let through at once.
//!
//! The name in LOGIN has to be the user's: a program set up for another account must not see this
//! one's mail. No I/O here.

use imap_codec::decode::{AuthenticateDataDecodeError, CommandDecodeError, Decoder};
use imap_codec::imap_types::auth::{AuthMechanism, AuthenticateData};
use imap_codec::imap_types::command::{Command, CommandBody};
use imap_codec::imap_types::core::{LiteralMode, Tag};
use imap_codec::imap_types::secret::Secret;
use imap_codec::{AuthenticateDataCodec, CommandCodec};
use zeroize::{Zeroize, Zeroizing};

/// Most bytes a client may send without completing a command.
const MAX_COMMAND: usize = 16 * 1024;
/// Longest greeting of a server.
pub const MAX_GREETING: usize = 8 * 1024;

/// What the client is told before it has logged in; what the server offers it asks the server.
const CAPABILITY: &str = "IMAP4rev1 AUTH=PLAIN SASL-IR LITERAL+ ID";

/// What became of some input.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// More input is needed.
    Continue,
    /// The client is in; these bytes of it are the server's.
    LetThrough(Vec<u8>),
    /// The connection ends.
    End,
}

/// The filter between one client and one server.
pub struct LoginFilter {
    user: String,
    input: Zeroizing<Vec<u8>>,
    /// Tag of an AUTHENTICATE PLAIN whose response is still to come.
    authenticating: Option<Tag<'static>>,
    /// The literal whose continuation the client has been given already.
    continued: usize,
}

/// Whether a server's first line says that the user is known already.
pub fn is_preauth(greeting: &[u8]) -> bool {
    greeting.len() >= 9 && greeting[..9].eq_ignore_ascii_case(b"* PREAUTH")
}

impl LoginFilter {
    /// A filter for a client of `user`.
    pub fn new(user: &str) -> Self {
        Self {
            user: user.into(),
            input: Zeroizing::default(),
            authenticating: None,
            continued: 0,
        }
    }

    /// What the client is greeted with.
    pub fn greeting() -> Vec<u8> {
        format!("* OK [CAPABILITY {CAPABILITY}] Usher knows who you are; any password will do\r\n")
            .into_bytes()
    }

    /// Takes what the client has sent; appends to `output` what it is answered.
    pub fn push(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Progress {
        self.input.extend_from_slice(bytes);
        loop {
            let before = self.input.len();
            let progress = match self.authenticating.take() {
                Some(tag) => self.response(tag, output),
                None => self.command(output),
            };
            match progress {
                Progress::Continue if self.input.is_empty() || self.input.len() == before => {
                    if self.input.len() > MAX_COMMAND {
                        output.extend_from_slice(b"* BYE command too long\r\n");
                        return Progress::End;
                    }
                    return Progress::Continue;
                }
                Progress::Continue => {}
                other => return other,
            }
        }
    }

    fn command(&mut self, output: &mut Vec<u8>) -> Progress {
        let input = std::mem::take(&mut *self.input);
        let progress = match CommandCodec::default().decode(&input) {
            Ok((rest, command)) => {
                self.continued = 0;
                let rest = rest.to_vec();
                let consumed = input.len() - rest.len();
                let progress = self.answer(&command, output);
                if matches!(progress, Progress::LetThrough(_)) {
                    // After a login what follows is the server's; else this command is as well.
                    let from = if is_login(&command.body) { consumed } else { 0 };
                    Progress::LetThrough(input[from..].to_vec())
                } else {
                    *self.input = rest;
                    progress
                }
            }
            Err(CommandDecodeError::LiteralFound { length, mode, .. }) => {
                let place = input.len();
                if length as usize > MAX_COMMAND {
                    output.extend_from_slice(b"* BYE literal too long\r\n");
                    return Progress::End;
                }
                if mode == LiteralMode::Sync && self.continued != place {
                    self.continued = place;
                    output.extend_from_slice(b"+ go on\r\n");
                }
                *self.input = input;
                return Progress::Continue;
            }
            Err(CommandDecodeError::Incomplete) => {
                *self.input = input;
                return Progress::Continue;
            }
            Err(CommandDecodeError::Failed) => {
                let end = input
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(input.len(), |at| at + 1);
                output.extend_from_slice(b"* BAD not an IMAP command\r\n");
                *self.input = input[end..].to_vec();
                Progress::Continue
            }
        };
        let mut input = input;
        input.zeroize();
        progress
    }

    fn answer(&mut self, command: &Command<'_>, output: &mut Vec<u8>) -> Progress {
        let tag = command.tag.as_ref();
        match &command.body {
            CommandBody::Capability => {
                let text = format!("* CAPABILITY {CAPABILITY}\r\n{tag} OK done\r\n");
                output.extend_from_slice(text.as_bytes());
                Progress::Continue
            }
            CommandBody::Noop => {
                output.extend_from_slice(format!("{tag} OK done\r\n").as_bytes());
                Progress::Continue
            }
            CommandBody::Id { .. } => {
                output.extend_from_slice(format!("* ID NIL\r\n{tag} OK done\r\n").as_bytes());
                Progress::Continue
            }
            CommandBody::Logout => {
                output.extend_from_slice(format!("* BYE bye\r\n{tag} OK done\r\n").as_bytes());
                Progress::End
            }
            CommandBody::Login { username, .. } => self.log_in(tag, username.as_ref(), output),
            CommandBody::Authenticate {
                mechanism: AuthMechanism::Plain,
                initial_response,
            } => match initial_response {
                Some(response) => {
                    let response = response.declassify().to_vec();
                    self.plain(tag, &Zeroizing::new(response), output)
                }
                None => {
                    self.authenticating = Tag::try_from(tag.to_owned()).ok();
                    output.extend_from_slice(b"+ \r\n");
                    Progress::Continue
                }
            },
            CommandBody::Authenticate { .. } => {
                let text = format!("{tag} NO [CANNOT] use LOGIN or AUTHENTICATE PLAIN\r\n");
                output.extend_from_slice(text.as_bytes());
                Progress::Continue
            }
            CommandBody::StartTLS => {
                let text = format!("{tag} NO [CANNOT] this connection does not leave the host\r\n");
                output.extend_from_slice(text.as_bytes());
                Progress::Continue
            }
            // The server speaks to an authenticated user already.
            _ => Progress::LetThrough(Vec::new()),
        }
    }

    /// The client's answer to the `+` of AUTHENTICATE PLAIN.
    fn response(&mut self, tag: Tag<'static>, output: &mut Vec<u8>) -> Progress {
        let input = Zeroizing::new(std::mem::take(&mut *self.input));
        match AuthenticateDataCodec::default().decode(&input) {
            Ok((rest, data)) => {
                *self.input = rest.to_vec();
                let progress = match data {
                    AuthenticateData::Continue(response) => {
                        let response = Zeroizing::new(Secret::declassify(&response).to_vec());
                        self.plain(tag.as_ref(), &response, output)
                    }
                    AuthenticateData::Cancel => {
                        let text = format!("{} BAD cancelled\r\n", tag.as_ref());
                        output.extend_from_slice(text.as_bytes());
                        Progress::Continue
                    }
                };
                match progress {
                    Progress::LetThrough(_) => {
                        Progress::LetThrough(std::mem::take(&mut *self.input))
                    }
                    other => other,
                }
            }
            Err(AuthenticateDataDecodeError::Incomplete) => {
                self.input.extend_from_slice(&input);
                self.authenticating = Some(tag);
                Progress::Continue
            }
            Err(AuthenticateDataDecodeError::Failed) => {
                output.extend_from_slice(b"* BYE not a SASL response\r\n");
                Progress::End
            }
        }
    }

    /// SASL PLAIN (RFC 4616): authorization identity, authentication identity, password.
    fn plain(&self, tag: &str, response: &[u8], output: &mut Vec<u8>) -> Progress {
        let mut parts = response.split(|byte| *byte == 0);
        let (authorization, authentication) = (parts.next(), parts.next());
        let name = match (authorization, authentication) {
            (Some(b""), Some(name)) => name,
            (Some(acting), Some(name)) if acting == name => name,
            _ => b"",
        };
        self.log_in(tag, name, output)
    }

    fn log_in(&self, tag: &str, name: &[u8], output: &mut Vec<u8>) -> Progress {
        if name == self.user.as_bytes() {
            output.extend_from_slice(format!("{tag} OK you are {}\r\n", self.user).as_bytes());
            Progress::LetThrough(Vec::new())
        } else {
            let text = format!(
                "{tag} NO [AUTHORIZATIONFAILED] this connection is {}'s; set this account's user \
                 name to that\r\n",
                self.user
            );
            output.extend_from_slice(text.as_bytes());
            Progress::Continue
        }
    }
}

fn is_login(body: &CommandBody<'_>) -> bool {
    matches!(
        body,
        CommandBody::Login { .. } | CommandBody::Authenticate { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `input` in pieces of `size` bytes.
    fn feed(input: &[u8], size: usize) -> (String, Progress) {
        let mut filter = LoginFilter::new("alice");
        let mut output = Vec::new();
        let mut pieces = input.chunks(size);
        while let Some(piece) = pieces.next() {
            match filter.push(piece, &mut output) {
                Progress::Continue => {}
                Progress::LetThrough(mut rest) => {
                    pieces.for_each(|piece| rest.extend_from_slice(piece));
                    return (
                        String::from_utf8(output).unwrap(),
                        Progress::LetThrough(rest),
                    );
                }
                Progress::End => return (String::from_utf8(output).unwrap(), Progress::End),
            }
        }
        (String::from_utf8(output).unwrap(), Progress::Continue)
    }

    #[test]
    fn a_login_is_answered_and_what_follows_is_let_through() {
        for size in [1, 7, 1000] {
            let input = b"a LOGIN alice \"secret word\"\r\nb SELECT INBOX\r\n";
            let (output, progress) = feed(input, size);
            assert_eq!(output, "a OK you are alice\r\n");
            assert_eq!(
                progress,
                Progress::LetThrough(b"b SELECT INBOX\r\n".to_vec())
            );
        }
    }

    #[test]
    fn another_users_name_is_refused_and_the_right_one_after_it_is_not() {
        let (output, progress) = feed(b"a LOGIN bob x\r\nb LOGIN alice x\r\n", 1000);
        assert!(output.starts_with("a NO [AUTHORIZATIONFAILED]"), "{output}");
        assert!(output.ends_with("b OK you are alice\r\n"), "{output}");
        assert_eq!(progress, Progress::LetThrough(Vec::new()));
    }

    #[test]
    fn literals_are_asked_for_once_each() {
        let mut filter = LoginFilter::new("alice");
        let mut output = Vec::new();
        assert_eq!(
            filter.push(b"a LOGIN {5}\r\n", &mut output),
            Progress::Continue
        );
        assert_eq!(std::mem::take(&mut output), b"+ go on\r\n");
        assert_eq!(filter.push(b"alice", &mut output), Progress::Continue);
        assert_eq!(std::mem::take(&mut output), b"");
        assert_eq!(filter.push(b" {3}\r\n", &mut output), Progress::Continue);
        assert_eq!(std::mem::take(&mut output), b"+ go on\r\n");
        assert_eq!(
            filter.push(b"abc\r\n", &mut output),
            Progress::LetThrough(Vec::new())
        );
        assert_eq!(output, b"a OK you are alice\r\n");
    }

    #[test]
    fn plain_is_answered_with_and_without_initial_response() {
        // NUL alice NUL x; NUL bob NUL x
        let (output, progress) = feed(b"a AUTHENTICATE PLAIN AGFsaWNlAHg=\r\n", 5);
        assert_eq!(
            (output.as_str(), progress),
            ("a OK you are alice\r\n", Progress::LetThrough(vec![]))
        );
        let (output, progress) = feed(b"a AUTHENTICATE PLAIN\r\nAGFsaWNlAHg=\r\nb NOOP\r\n", 1000);
        assert_eq!(output, "+ \r\na OK you are alice\r\n");
        assert_eq!(progress, Progress::LetThrough(b"b NOOP\r\n".to_vec()));
        let (output, progress) = feed(b"a AUTHENTICATE PLAIN AGJvYgB4\r\n", 1000);
        assert!(output.starts_with("a NO"), "{output}");
        assert_eq!(progress, Progress::Continue);
    }

    #[test]
    fn a_client_that_does_not_log_in_is_let_through_with_its_command() {
        let (output, progress) = feed(b"a CAPABILITY\r\nb SELECT INBOX\r\nc NOOP\r\n", 1000);
        assert!(output.ends_with("a OK done\r\n"), "{output}");
        assert_eq!(
            progress,
            Progress::LetThrough(b"b SELECT INBOX\r\nc NOOP\r\n".to_vec())
        );
    }

    #[test]
    fn endless_and_senseless_input_is_bounded() {
        assert_eq!(feed(&[b'a'; MAX_COMMAND + 2], 1000).1, Progress::End);
        let (output, progress) = feed(b"\x01\x02 nonsense\r\na LOGIN alice x\r\n", 1000);
        assert!(output.starts_with("* BAD"), "{output}");
        assert_eq!(progress, Progress::LetThrough(Vec::new()));
        assert_eq!(feed(b"a LOGIN {99999}\r\n", 1000).1, Progress::End);
    }

    #[test]
    fn preauth_is_recognised() {
        assert!(is_preauth(b"* PREAUTH [CAPABILITY IMAP4rev1] hello\r\n"));
        assert!(is_preauth(b"* preauth hello\r\n"));
        assert!(!is_preauth(b"* OK hello\r\n"));
        assert!(!is_preauth(b"* PRE"));
    }
}
