//! IMAP clients that insist on LOGIN.
//!
//! A user-based IMAP server knows its user before the first byte and greets with PREAUTH
//! (RFC 9051, section 7.1.4). Many mail programs still want to log in. This filter stands between
//! such a program and the server until the program has logged in: it greets with OK, answers LOGIN and
//! AUTHENTICATE PLAIN itself, discards the password, and then passes the bytes on. It passes a program that
//! sends any other command on at once.
//!
//! The capabilities that it announces before the login are the server's, because many clients ask only once.
//!
//! The name in LOGIN must be the user's: a program that is set up for another account must not see this
//! user's mail. No I/O here.

mod capabilities;
mod command;

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

pub use capabilities::Capabilities;
use command::{Command, MAX_COMMAND, Read, read_command};

/// Limit of bytes that [`LoginFilter::push`] takes at once.
pub const MAX_PIECE: usize = 4 * 1024;
/// Longest greeting of a server.
pub const MAX_GREETING: usize = 8 * 1024;

/// The outcome of some input.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// More input is needed.
    Continue,
    /// The client is logged in; these bytes from it are for the server.
    LetThrough(Vec<u8>),
    /// The connection ends.
    End,
}

/// The filter between one client and one server.
pub struct LoginFilter {
    user: String,
    capabilities: Capabilities,
    input: Zeroizing<Vec<u8>>,
    /// Tag of an AUTHENTICATE PLAIN that still lacks its response.
    authenticating: Option<String>,
    /// Offset in the input of the last literal that the client was told to send.
    continued: usize,
}

/// Whether a server's first line says that the user is already authenticated.
pub fn is_preauth(greeting: &[u8]) -> bool {
    greeting.len() >= 9 && greeting[..9].eq_ignore_ascii_case(b"* PREAUTH")
}

/// The result of looking at the input.
enum Step {
    /// The input may have more commands.
    Again,
    /// The input has no complete command.
    Part,
    Over(Progress),
}

impl LoginFilter {
    /// A filter for a client of `user`, at a server with these capabilities.
    pub fn new(user: &str, capabilities: Capabilities) -> Self {
        Self {
            user: user.into(),
            capabilities,
            // Allocated at its largest size, so that it never moves and leaves no password behind.
            input: Zeroizing::new(Vec::with_capacity(MAX_COMMAND + MAX_PIECE)),
            authenticating: None,
            continued: 0,
        }
    }

    /// The greeting for the client.
    pub fn greeting(&self) -> Vec<u8> {
        let capabilities = self.capabilities.before_login();
        format!(
            "* OK [CAPABILITY {capabilities}] Usher knows who you are; any password will do\r\n"
        )
        .into_bytes()
    }

    /// Takes bytes from the client, [`MAX_PIECE`] at most, and appends the answers to `output`.
    pub fn push(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Progress {
        self.input.extend_from_slice(bytes);
        loop {
            let step = match self.authenticating.take() {
                Some(tag) => self.response(tag, output),
                None => self.command(output),
            };
            match step {
                Step::Again => {}
                Step::Part if self.input.len() > MAX_COMMAND => {
                    say(output, "* BYE command too long\r\n");
                    return Progress::End;
                }
                Step::Part => return Progress::Continue,
                Step::Over(progress) => return progress,
            }
        }
    }

    /// Takes a command off the input.
    fn command(&mut self, output: &mut Vec<u8>) -> Step {
        match read_command(&self.input, self.continued) {
            Read::Command {
                tag,
                command,
                length,
            } => {
                self.take(length);
                self.answer(tag, &command, output)
            }
            // The server already has an authenticated user.
            Read::OfUser => self.let_through(),
            Read::Part => Step::Part,
            Read::Literal(place) => {
                self.continued = place;
                say(output, "+ go on\r\n")
            }
            Read::Wrong { tag, why, length } => {
                self.take(length);
                // Tagged if possible: a client that waits for the answer to its command sees only a tagged
                // line.
                let tag = tag.as_deref().unwrap_or("*");
                say(output, &format!("{tag} BAD {why}\r\n"))
            }
            Read::TooLong => {
                say(output, "* BYE literal too long\r\n");
                Step::Over(Progress::End)
            }
        }
    }

    fn take(&mut self, length: usize) {
        self.input.drain(..length);
        self.continued = 0;
    }

    fn let_through(&mut self) -> Step {
        Step::Over(Progress::LetThrough(self.input.to_vec()))
    }

    fn answer(&mut self, tag: String, command: &Command, output: &mut Vec<u8>) -> Step {
        let text = match command {
            Command::Capability => {
                let capabilities = self.capabilities.before_login();
                format!("* CAPABILITY {capabilities}\r\n{tag} OK done\r\n")
            }
            Command::Noop => format!("{tag} OK done\r\n"),
            Command::Id => format!("* ID NIL\r\n{tag} OK done\r\n"),
            Command::Logout => {
                say(output, &format!("* BYE bye\r\n{tag} OK done\r\n"));
                return Step::Over(Progress::End);
            }
            Command::StartTls => {
                format!("{tag} NO [CANNOT] this connection does not leave the host\r\n")
            }
            Command::Login(name) => return self.log_in(&tag, name, output),
            Command::Authenticate(mechanism, response)
                if mechanism.eq_ignore_ascii_case(b"PLAIN") =>
            {
                match response {
                    Some(response) => return self.plain(&tag, response, output),
                    None => {
                        self.authenticating = Some(tag);
                        "+ \r\n".into()
                    }
                }
            }
            Command::Authenticate(..) => {
                format!("{tag} NO [CANNOT] use LOGIN or AUTHENTICATE PLAIN\r\n")
            }
        };
        say(output, &text)
    }

    /// The client's answer to the `+` of AUTHENTICATE PLAIN.
    fn response(&mut self, tag: String, output: &mut Vec<u8>) -> Step {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            self.authenticating = Some(tag);
            return Step::Part;
        };
        let line = Zeroizing::new(self.input[..end].to_vec());
        self.take(end + 1);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line == b"*" {
            return say(output, &format!("{tag} BAD cancelled\r\n"));
        }
        self.plain(&tag, line, output)
    }

    /// SASL PLAIN (RFC 4616) in base 64: authorization identity, NUL, authentication identity, NUL, password.
    /// The password may be any bytes.
    fn plain(&mut self, tag: &str, response: &[u8], output: &mut Vec<u8>) -> Step {
        let decoded = std::str::from_utf8(response)
            .ok()
            .and_then(|text| Base64::decode_vec(text).ok())
            .map(Zeroizing::new);
        let mut parts = decoded
            .iter()
            .flat_map(|bytes| bytes.splitn(3, |b| *b == 0));
        let (Some(authorization), Some(name), Some(_)) = (parts.next(), parts.next(), parts.next())
        else {
            return say(
                output,
                &format!("{tag} BAD not a response of PLAIN in base 64\r\n"),
            );
        };
        let name = match authorization {
            b"" => name.to_vec(),
            acting if acting == name => name.to_vec(),
            // A request to act as another user.
            _ => Vec::new(),
        };
        self.log_in(tag, &name, output)
    }

    fn log_in(&mut self, tag: &str, name: &[u8], output: &mut Vec<u8>) -> Step {
        if name == self.user.as_bytes() {
            let capabilities = self.capabilities.after_login();
            let text = format!(
                "{tag} OK [CAPABILITY {capabilities}] you are {}\r\n",
                self.user
            );
            say(output, &text);
            return self.let_through();
        }
        let text = format!(
            "{tag} NO [AUTHORIZATIONFAILED] this connection is {}'s; set this account's user name \
             to that\r\n",
            self.user
        );
        say(output, &text)
    }
}

/// Answers the client, which may go on.
fn say(output: &mut Vec<u8>, text: &str) -> Step {
    output.extend_from_slice(text.as_bytes());
    Step::Again
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `input` in pieces of `size` bytes.
    fn feed(input: &[u8], size: usize) -> (String, Progress) {
        let mut filter = LoginFilter::new("alice", Capabilities::default());
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
            assert_eq!(output, "a OK [CAPABILITY IMAP4rev1] you are alice\r\n");
            assert_eq!(
                progress,
                Progress::LetThrough(b"b SELECT INBOX\r\n".to_vec())
            );
        }
    }

    #[test]
    fn the_capabilities_are_the_servers() {
        let capabilities = "* PREAUTH [CAPABILITY IMAP4rev1 IDLE ENABLE] hello\r\n";
        let capabilities = Capabilities::in_greeting(capabilities.as_bytes()).unwrap();
        let mut filter = LoginFilter::new("alice", capabilities);
        let before = "CAPABILITY IMAP4rev1 IDLE ENABLE AUTH=PLAIN SASL-IR";
        let greeting = String::from_utf8(filter.greeting()).unwrap();
        assert!(
            greeting.starts_with(&format!("* OK [{before}] ")),
            "{greeting}"
        );
        let mut output = Vec::new();
        filter.push(b"a CAPABILITY\r\nb LOGIN alice x\r\n", &mut output);
        let output = String::from_utf8(output).unwrap();
        let after = "b OK [CAPABILITY IMAP4rev1 IDLE ENABLE] you are alice\r\n";
        assert_eq!(output, format!("* {before}\r\na OK done\r\n{after}"));
    }

    #[test]
    fn another_users_name_is_refused_before_the_right_one() {
        let (output, progress) = feed(b"a LOGIN bob x\r\nb LOGIN alice x\r\n", 1000);
        assert!(output.starts_with("a NO [AUTHORIZATIONFAILED]"), "{output}");
        assert!(
            output.ends_with("b OK [CAPABILITY IMAP4rev1] you are alice\r\n"),
            "{output}"
        );
        assert_eq!(progress, Progress::LetThrough(Vec::new()));
    }

    #[test]
    fn literals_are_asked_for_once_each() {
        let mut filter = LoginFilter::new("alice", Capabilities::default());
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
        assert_eq!(output, b"a OK [CAPABILITY IMAP4rev1] you are alice\r\n");
    }

    #[test]
    fn plain_is_answered_with_and_without_initial_response() {
        // NUL alice NUL x; NUL bob NUL x
        let (output, progress) = feed(b"a AUTHENTICATE PLAIN AGFsaWNlAHg=\r\n", 5);
        assert_eq!(
            (output.as_str(), progress),
            (
                "a OK [CAPABILITY IMAP4rev1] you are alice\r\n",
                Progress::LetThrough(vec![])
            )
        );
        let (output, progress) = feed(b"a AUTHENTICATE PLAIN\r\nAGFsaWNlAHg=\r\nb NOOP\r\n", 1000);
        assert_eq!(
            output,
            "+ \r\na OK [CAPABILITY IMAP4rev1] you are alice\r\n"
        );
        assert_eq!(progress, Progress::LetThrough(b"b NOOP\r\n".to_vec()));
        let (output, progress) = feed(b"a AUTHENTICATE PLAIN AGJvYgB4\r\n", 1000);
        assert!(output.starts_with("a NO"), "{output}");
        assert_eq!(progress, Progress::Continue);
    }

    #[test]
    fn a_client_without_login_passes_with_its_command() {
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
        assert_eq!(feed(b"a LOGIN {99999+}\r\n", 1000).1, Progress::End);
    }

    #[test]
    fn every_command_with_a_tag_gets_a_tagged_answer() {
        for wrong in [
            "a LOGIN",
            "a LOGIN alice",
            "a LOGIN  alice x",
            "a  LOGIN alice x",
            "a LOGIN alice \"x",
            "a LOGIN {99999}",
            "a AUTHENTICATE",
            "a AUTHENTICATE PLAIN =",
            "a AUTHENTICATE PLAIN nonsense!",
            "a AUTHENTICATE PLAIN\r\n*",
            "a AUTHENTICATE PLAIN\r\nnonsense!",
            // alice NUL x
            "a AUTHENTICATE PLAIN\r\nYWxpY2UAeA==",
            "a XYZZY",
        ] {
            for size in [1, 1000] {
                let input = format!("{wrong}\r\nb LOGIN alice \"Gr\u{fc}\u{df}e\"\r\n");
                let (output, progress) = feed(input.as_bytes(), size);
                let answer = output.strip_prefix("+ \r\n").unwrap_or(&output);
                assert!(answer.starts_with("a BAD "), "{wrong}: {output}");
                assert!(
                    answer.ends_with("\r\nb OK [CAPABILITY IMAP4rev1] you are alice\r\n"),
                    "{output}"
                );
                assert_eq!(progress, Progress::LetThrough(Vec::new()), "{wrong}");
            }
        }
    }

    #[test]
    fn no_part_of_a_wrong_command_is_let_through() {
        // A password that looks like a command, behind two blanks.
        let input = b"a LOGIN  alice {15+}\r\nb SELECT INBOX\n\r\nc LOGOUT\r\n";
        let (output, progress) = feed(input, 3);
        assert!(output.starts_with("a BAD "), "{output}");
        assert_eq!(progress, Progress::End);
    }

    proptest::proptest! {
        /// In whatever pieces input comes, the answers are the same.
        #[test]
        fn pieces_make_no_difference(
            words in proptest::collection::vec(word(), 0..12),
            size in 1_usize..9,
        ) {
            let input = words.concat();
            proptest::prop_assert_eq!(feed(&input, size), feed(&input, MAX_PIECE));
        }

        /// Each password, in each form, logs in.
        #[test]
        fn each_password_logs_in(password: Vec<u8>) {
            let quoted: Vec<u8> = password
                .iter()
                .filter(|byte| !b"\r\n".contains(byte))
                .flat_map(|byte| match byte {
                    b'"' | b'\\' => vec![b'\\', *byte],
                    _ => vec![*byte],
                })
                .collect();
            let message = [&b"\0alice\0"[..], &password].concat();
            let literal = format!("a LOGIN alice {{{}+}}\r\n", password.len());
            for input in [
                [&b"a LOGIN alice \""[..], &quoted, b"\"\r\n"].concat(),
                [literal.as_bytes(), &password, b"\r\n"].concat(),
                format!("a AUTHENTICATE PLAIN {}\r\n", Base64::encode_string(&message)).into(),
                format!("a AUTHENTICATE PLAIN\r\n{}\r\n", Base64::encode_string(&message)).into(),
            ] {
                let (output, progress) = feed(&input, 100);
                proptest::prop_assert!(output.ends_with("a OK [CAPABILITY IMAP4rev1] you are alice\r\n"), "{}", output);
                proptest::prop_assert_eq!(progress, Progress::LetThrough(Vec::new()));
            }
        }
    }

    /// A piece of what clients say, right or wrong.
    fn word() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
        let known = [
            "a ",
            "b ",
            "LOGIN ",
            "alice ",
            "x\r\n",
            "\r\n",
            "\n",
            " ",
            "\"",
            "\\",
            "{3+}\r\n",
            "{2}\r\n",
            "AUTHENTICATE PLAIN",
            "AGFsaWNlAHg=\r\n",
            "*\r\n",
            "SELECT ",
            "NOOP\r\n",
            "ID (",
            "LOGOUT\r\n",
            "\u{fc}",
        ];
        proptest::sample::select(known.map(|text| text.as_bytes().to_vec()).to_vec())
    }

    #[test]
    fn preauth_is_recognised() {
        assert!(is_preauth(b"* PREAUTH [CAPABILITY IMAP4rev1] hello\r\n"));
        assert!(is_preauth(b"* preauth hello\r\n"));
        assert!(!is_preauth(b"* OK hello\r\n"));
        assert!(!is_preauth(b"* PRE"));
    }
}
