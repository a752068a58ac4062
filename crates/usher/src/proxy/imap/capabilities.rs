//! The capabilities of a server, as a client may see them before and after the login (RFC 9051, section
//! 7.2.2). Many clients ask once, before the login, and never again. No I/O.

/// A list of capabilities of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities(Vec<String>);

impl Default for Capabilities {
    /// The least that every server has.
    fn default() -> Self {
        Self(vec!["IMAP4rev1".into()])
    }
}

impl Capabilities {
    /// The list in the response code of a greeting, if it has one.
    pub fn in_greeting(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let (_, code) = text.split_once('[')?;
        let (code, _) = code.split_once(']')?;
        Self::read(code)
    }

    /// The list in an untagged response, if the line is one.
    pub fn in_response(line: &[u8]) -> Option<Self> {
        Self::read(std::str::from_utf8(line).ok()?.strip_prefix("* ")?)
    }

    /// `CAPABILITY` and words.
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let keyword = words.next()?;
        let is_word = |word: &&str| {
            word.bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b']')
        };
        let words: Vec<_> = words.filter(is_word).map(str::to_owned).collect();
        (keyword.eq_ignore_ascii_case("CAPABILITY") && !words.is_empty()).then_some(Self(words))
    }

    /// The list before the login: the server's, except that the client logs in here and by PLAIN.
    pub fn before_login(&self) -> String {
        let of_server = self.0.iter().map(String::as_str);
        let kept = of_server.filter(|word| !is_of_login(word));
        let words: Vec<_> = kept.chain(["AUTH=PLAIN", "SASL-IR"]).collect();
        words.join(" ")
    }

    /// The list after the login: the server's.
    pub fn after_login(&self) -> String {
        self.0.join(" ")
    }
}

/// Whether a capability is about logging in, which is the proxy's part. After UNAUTHENTICATE (RFC 8437) a
/// client would log in again, at the server, where no password counts.
fn is_of_login(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    let others = ["STARTTLS", "LOGINDISABLED", "SASL-IR", "UNAUTHENTICATE"];
    word.starts_with("AUTH=") || others.contains(&word.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_changes_only_how_one_logs_in() {
        let greeting =
            b"* PREAUTH [CAPABILITY IMAP4rev1 SASL-IR AUTH=GSSAPI LOGINDISABLED LITERAL+ \
            ENABLE IDLE UNAUTHENTICATE] Logged in as alice\r\n";
        let found = Capabilities::in_greeting(greeting).unwrap();
        assert_eq!(
            found.before_login(),
            "IMAP4rev1 LITERAL+ ENABLE IDLE AUTH=PLAIN SASL-IR"
        );
        assert_eq!(
            found.after_login(),
            "IMAP4rev1 SASL-IR AUTH=GSSAPI LOGINDISABLED LITERAL+ ENABLE IDLE UNAUTHENTICATE"
        );
    }

    #[test]
    fn only_a_list_of_capabilities_is_one() {
        for none in [
            &b"* PREAUTH hello\r\n"[..],
            b"* PREAUTH [ALERT] hello\r\n",
            b"* PREAUTH [CAPABILITY ] hello\r\n",
            b"* PREAUTH [CAPABILITY IMAP4rev1\r\n",
            b"* PREAUTH [CAPABILITY IMAP4rev1\xff] hello\r\n",
        ] {
            assert_eq!(Capabilities::in_greeting(none), None);
        }
        let list = Capabilities::in_response(b"* capability IMAP4rev1 IDLE\r\n").unwrap();
        assert_eq!(list.after_login(), "IMAP4rev1 IDLE");
        assert_eq!(Capabilities::in_response(b"* 3 EXISTS\r\n"), None);
        assert_eq!(
            Capabilities::in_response(b"a CAPABILITY IMAP4rev1\r\n"),
            None
        );
    }
}
