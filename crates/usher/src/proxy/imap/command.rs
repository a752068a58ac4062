//! Reading IMAP commands until the login: RFC 3501 and RFC 9051, literals by RFC 7888.
//!
//! The reader knows only the grammar of logging in, and accepts more than the grammar permits where that is
//! harmless: any bytes in names and passwords, and lines that end with LF alone. It skips an unreadable
//! command as a whole, its literals included, so that no part of a password counts as a command. No I/O.

use zeroize::Zeroizing;

/// Limit of bytes in an incomplete command, its literals included.
pub const MAX_COMMAND: usize = 16 * 1024;

/// A command that the proxy answers.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// CAPABILITY
    Capability,
    /// NOOP
    Noop,
    /// ID, with any arguments (RFC 2971).
    Id,
    /// LOGOUT
    Logout,
    /// STARTTLS
    StartTls,
    /// LOGIN as this user. The password is discarded.
    Login(Vec<u8>),
    /// AUTHENTICATE with this mechanism, and an initial response if there is one (RFC 4959), still in
    /// base 64.
    Authenticate(Vec<u8>, Option<Zeroizing<Vec<u8>>>),
}

/// The result of reading the beginning of some input.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A command.
    Command {
        /// The tag for the answer.
        tag: String,
        /// The command.
        command: Command,
        /// The length of the command in bytes.
        length: usize,
    },
    /// A command of authenticated users. It may be longer than the input.
    OfUser,
    /// An incomplete command.
    Part,
    /// An incomplete command. Its client waits for a continuation before it sends the literal that begins
    /// at this offset.
    Literal(usize),
    /// An unreadable command.
    Wrong {
        /// The tag for the answer, if it could be read.
        tag: Option<String>,
        /// The reason, for the client.
        why: &'static str,
        /// The length of the command in bytes.
        length: usize,
    },
    /// A literal that is too long, which the client sends without waiting for an answer.
    TooLong,
}

/// Commands of authenticated users, which need no login here. Commands in no list are refused: a LOGIN
/// without a tag looks like another command.
const OF_USER: &str = "\
    APPEND CHECK CLOSE COMPRESS COPY CREATE DELETE DELETEACL ENABLE EXAMINE EXPUNGE FETCH \
    GENURLAUTH GETACL GETMETADATA GETQUOTA GETQUOTAROOT IDLE LIST LISTRIGHTS LSUB MOVE MYRIGHTS \
    NAMESPACE NOTIFY RENAME REPLACE SEARCH SELECT SETACL SETMETADATA SETQUOTA SORT STATUS STORE \
    SUBSCRIBE THREAD UID UNSELECT UNSUBSCRIBE XLIST";

/// Reads the command at the beginning of the input. `continued` is the offset of the last literal that the
/// client was told to send, or 0.
pub fn read_command(input: &[u8], continued: usize) -> Read {
    let mut reader = Reader {
        input,
        at: 0,
        continued,
    };
    let mut tag = None;
    match reader.command(&mut tag) {
        Ok(Some((tag, command))) => Read::Command {
            tag,
            command,
            length: reader.at,
        },
        Ok(None) => Read::OfUser,
        Err(Read::Wrong { why, .. }) => match reader.skip_command() {
            Ok(()) => Read::Wrong {
                tag,
                why,
                length: reader.at,
            },
            Err(stop) => stop,
        },
        Err(stop) => stop,
    }
}

/// An unreadable command, whose tag and length [`read_command`] finds.
fn wrong(why: &'static str) -> Read {
    Read::Wrong {
        tag: None,
        why,
        length: 0,
    }
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    continued: usize,
}

impl Reader<'_> {
    /// Returns none for a command of authenticated users. Sets the tag as soon as it has been read.
    fn command(&mut self, tag: &mut Option<String>) -> Result<Option<(String, Command)>, Read> {
        let word = self.word()?;
        let found = std::str::from_utf8(word)
            .ok()
            .filter(|word| !word.is_empty() && word.bytes().all(is_of_tag))
            .ok_or_else(|| wrong("no tag"))?
            .to_owned();
        *tag = Some(found.clone());
        self.space()?;
        let verb = self.word()?.to_ascii_uppercase();
        let verb = std::str::from_utf8(&verb).unwrap_or_default();
        let command = match verb {
            "CAPABILITY" => Command::Capability,
            "NOOP" => Command::Noop,
            "LOGOUT" => Command::Logout,
            "STARTTLS" => Command::StartTls,
            "ID" => {
                self.skip_arguments()?;
                Command::Id
            }
            "LOGIN" => {
                self.space()?;
                let name = self.string()?.to_vec();
                self.space()?;
                self.string()?;
                Command::Login(name)
            }
            "AUTHENTICATE" => {
                self.space()?;
                let mechanism = self.atom()?.to_vec();
                let response = match self.peek()? {
                    b' ' => {
                        self.at += 1;
                        Some(Zeroizing::new(self.atom()?.to_vec()))
                    }
                    _ => None,
                };
                Command::Authenticate(mechanism, response)
            }
            verb if OF_USER.split(' ').any(|known| known == verb) => return Ok(None),
            "" => return Err(wrong("one blank must stand between tag and command")),
            _ => return Err(wrong("not a command before the login")),
        };
        self.end()?;
        Ok(Some((found, command)))
    }

    fn peek(&self) -> Result<u8, Read> {
        self.input.get(self.at).copied().ok_or(Read::Part)
    }

    fn space(&mut self) -> Result<(), Read> {
        match self.peek()? {
            b' ' => {
                self.at += 1;
                Ok(())
            }
            b'\r' | b'\n' => Err(wrong("an argument is missing at the end")),
            _ => Err(wrong("a blank is missing")),
        }
    }

    /// The rest of the line, without its LF.
    fn line(&self) -> Result<&[u8], Read> {
        let rest = &self.input[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n');
        Ok(&rest[..length.ok_or(Read::Part)?])
    }

    /// The end of a command.
    fn end(&mut self) -> Result<(), Read> {
        if self.peek()? == b'\r' {
            self.at += 1;
        }
        if self.peek()? != b'\n' {
            return Err(wrong("too many arguments"));
        }
        self.at += 1;
        Ok(())
    }

    /// The text before the next blank or the end of the line, one of which must come. May be empty.
    fn word(&mut self) -> Result<&[u8], Read> {
        let rest = &self.input[self.at..];
        let length = rest
            .iter()
            .position(|byte| matches!(byte, b' ' | b'\r' | b'\n'))
            .ok_or(Read::Part)?;
        self.at += length;
        Ok(&rest[..length])
    }

    /// As [`Self::word`], but not empty.
    fn atom(&mut self) -> Result<&[u8], Read> {
        match self.word()? {
            [] => Err(wrong("one blank must stand before each argument")),
            word => Ok(word),
        }
    }

    /// A name or a password: quoted, a literal, or up to the next blank.
    fn string(&mut self) -> Result<Zeroizing<Vec<u8>>, Read> {
        match self.peek()? {
            b'"' => self.quoted(),
            b'{' => self.literal().map(|bytes| Zeroizing::new(bytes.to_vec())),
            _ => self.atom().map(|bytes| Zeroizing::new(bytes.to_vec())),
        }
    }

    fn quoted(&mut self) -> Result<Zeroizing<Vec<u8>>, Read> {
        // Allocated at its largest size, so that the bytes never move and leave no copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.input.len() - self.at));
        loop {
            self.at += 1;
            match self.peek()? {
                b'"' => break,
                b'\r' | b'\n' => return Err(wrong("a quoted string is not closed")),
                b'\\' => {
                    self.at += 1;
                    if matches!(self.peek()?, b'\r' | b'\n') {
                        return Err(wrong("a quoted string is not closed"));
                    }
                    bytes.push(self.peek()?);
                }
                byte => bytes.push(byte),
            }
        }
        self.at += 1;
        Ok(bytes)
    }

    fn literal(&mut self) -> Result<&[u8], Read> {
        let line = self.line()?;
        let (length, announced) = (line.len(), announced_literal(line));
        let announced = announced.filter(|found| found.place == 0);
        let announced = announced.ok_or_else(|| wrong("not a literal"))?;
        match announced.length {
            Some(size) => {
                let begin = self.at + length + 1;
                if !announced.is_sent_at_once && begin > self.continued {
                    return Err(Read::Literal(begin));
                }
                let bytes = self.input.get(begin..begin + size).ok_or(Read::Part)?;
                self.at = begin + size;
                Ok(bytes)
            }
            None if announced.is_sent_at_once => Err(Read::TooLong),
            None => Err(wrong("the literal is too long")),
        }
    }

    /// Goes to the end of a line whose arguments do not matter.
    fn skip_arguments(&mut self) -> Result<(), Read> {
        loop {
            let before = self.at.checked_sub(1).map(|at| self.input[at]);
            match self.peek()? {
                b'\r' | b'\n' => return Ok(()),
                b'"' => drop(self.quoted()?),
                b'{' if matches!(before, Some(b' ' | b'(')) => drop(self.literal()?),
                _ => self.at += 1,
            }
        }
    }

    /// Goes to the end of a command that is wrong, with the literals that its client sends without
    /// waiting: they may contain anything.
    fn skip_command(&mut self) -> Result<(), Read> {
        loop {
            let line = self.line()?;
            let (length, announced) = (line.len(), announced_literal(line));
            self.at += length + 1;
            match announced {
                Some(announced) if announced.is_sent_at_once => {
                    let size = announced.length.ok_or(Read::TooLong)?;
                    if self.input.len() - self.at < size {
                        return Err(Read::Part);
                    }
                    self.at += size;
                }
                _ => return Ok(()),
            }
        }
    }
}

/// The announcement of a literal at the end of a line: `{5}` or `{5+}`.
struct Announced {
    /// The position of the announcement in the line.
    place: usize,
    /// The length of the literal; `None`: more than a command may have.
    length: Option<usize>,
    /// The client sends the literal without waiting for a continuation.
    is_sent_at_once: bool,
}

/// The literal that a line, without its LF, announces.
fn announced_literal(line: &[u8]) -> Option<Announced> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let place = line.iter().rposition(|byte| *byte == b'{')?;
    let inside = line[place + 1..].strip_suffix(b"}")?;
    let (digits, is_sent_at_once) = match inside.strip_suffix(b"+") {
        Some(digits) => (digits, true),
        None => (inside, false),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = digits.iter().try_fold(0_usize, |length, digit| {
        let length = length * 10 + usize::from(digit - b'0');
        (length <= MAX_COMMAND).then_some(length)
    });
    Some(Announced {
        place,
        length,
        is_sent_at_once,
    })
}

/// RFC 9051, `tag`: any ASTRING-CHAR but `+`.
fn is_of_tag(byte: u8) -> bool {
    byte.is_ascii_graphic() && !br#"(){%*"\+"#.contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(name: &str, length: usize) -> Read {
        Read::Command {
            tag: "a".into(),
            command: Command::Login(name.into()),
            length,
        }
    }

    #[test]
    fn any_bytes_pass_as_a_password() {
        let every: Vec<u8> = (1..=255).collect();
        let quotable = every.iter().filter(|byte| !b"\r\n".contains(byte));
        let mut quoted = b"a LOGIN alice \"".to_vec();
        quotable.for_each(|byte| quoted.extend([b'\\', *byte]));
        quoted.extend(b"\"\r\n");
        let unescaped = "a LOGIN alice \"Gr\u{fc}\u{df}e\"\r\n".as_bytes();
        let latin1 = b"a LOGIN alice \"Gr\xfc\xdfe\"\r\n";
        let atom = b"a LOGIN alice p(a%s*s]{w}\xff\r\n";
        let mut literal = b"a LOGIN alice {256+}\r\n\0".to_vec();
        literal.extend(&every);
        literal.extend(b"\r\n");
        for input in [&quoted, unescaped, latin1, &atom[..], &literal] {
            assert_eq!(read_command(input, 0), login("alice", input.len()));
        }
        // The same escapes are removed from a name.
        let input = br#"a LOGIN "al\"i\\ce" x"#;
        let whole = [&input[..], b"\n"].concat();
        assert_eq!(read_command(&whole, 0), login("al\"i\\ce", whole.len()));
    }

    #[test]
    fn a_wrong_command_has_its_tag_and_its_end() {
        for (input, tag, length) in [
            ("a LOGIN\r\nb", Some("a"), 9),
            ("a LOGIN alice\r\nb", Some("a"), 15),
            ("a LOGIN alice \r\nb", Some("a"), 16),
            ("a LOGIN  alice x\r\n", Some("a"), 18),
            ("a  LOGIN alice x\r\n", Some("a"), 18),
            ("a LOGIN alice x y\r\n", Some("a"), 19),
            ("a LOGIN alice \"x\r\n", Some("a"), 18),
            ("a LOGIN alice \"x\"y\r\n", Some("a"), 20),
            ("a LOGIN alice {3x}\r\n", Some("a"), 20),
            ("a NOOP x\r\n", Some("a"), 10),
            ("a\r\n", Some("a"), 3),
            ("LOGIN alice x\r\n", Some("LOGIN"), 15),
            ("a XYZZY\n", Some("a"), 8),
            ("\u{fc} LOGIN alice x\r\n", None, 18),
            ("\r\n", None, 2),
            (" LOGIN alice x\r\n", None, 16),
            // The literals of a wrong command are no commands.
            ("a LOGIN  alice {10+}\r\nb SELECT\r\n\r\n", Some("a"), 34),
        ] {
            match read_command(input.as_bytes(), 0) {
                Read::Wrong {
                    tag: found,
                    length: taken,
                    ..
                } => assert_eq!((found.as_deref(), taken), (tag, length), "{input:?}"),
                other => panic!("{input:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_literal_is_waited_for_and_a_long_one_is_refused() {
        let begun = b"a LOGIN {5}\r\n";
        assert_eq!(read_command(begun, 0), Read::Literal(13));
        assert_eq!(read_command(begun, 13), Read::Part);
        let next = b"a LOGIN {5}\r\nalice {1}\r\n";
        assert_eq!(read_command(next, 13), Read::Literal(24));
        let long = b"a LOGIN {16385}\r\n";
        assert!(matches!(
            read_command(long, 0),
            Read::Wrong { tag: Some(_), .. }
        ));
        assert_eq!(read_command(b"a LOGIN {16385+}\r\n", 0), Read::TooLong);
        let overflow = b"a LOGIN {99999999999999999999999+}\r\n";
        assert_eq!(read_command(overflow, 0), Read::TooLong);
        // Also if the command is wrong before the literal.
        assert_eq!(read_command(b"a LOGIN  x {16385+}\r\n", 0), Read::TooLong);
    }

    #[test]
    fn a_users_command_is_known_before_it_is_whole() {
        assert_eq!(read_command(b"a UID ", 0), Read::OfUser);
        assert_eq!(read_command(b"a select", 0), Read::Part);
        assert_eq!(read_command(b"a select\r", 0), Read::OfUser);
        assert!(OF_USER.split(' ').is_sorted());
    }

    #[test]
    fn whatever_a_client_says_of_itself_is_skipped() {
        for input in [
            "a ID NIL\r\n",
            "a ID (\"name\" \"x\\\"\" \"version\" {3+}\r\n)\r\n \"os\" NIL)\r\n",
        ] {
            let expected = Read::Command {
                tag: "a".into(),
                command: Command::Id,
                length: input.len(),
            };
            assert_eq!(read_command(input.as_bytes(), 0), expected, "{input:?}");
        }
    }
}
