//! The lines in which OpenSSH writes public keys.

/// A public key's line with one space between type, key and comment, and none before or after. sshd(8)
/// accepts any number of spaces and tabs between them; other readers of keys often accept one space only.
#[must_use]
pub fn with_single_blanks(line: &str) -> String {
    let blank = [' ', '\t'];
    let cut = |text: &str| -> (String, String) {
        let (word, rest) = text.split_once(blank).unwrap_or((text, ""));
        (word.to_owned(), rest.trim_start_matches(blank).to_owned())
    };
    let (kind, rest) = cut(line.trim());
    let (key, comment) = cut(&rest);
    format!("{kind} {key} {comment}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::with_single_blanks;

    #[test]
    fn only_blanks_between_the_parts_change() {
        let plain = "ssh-ed25519 AAAA alice  on\ther laptop";
        for blanks in [" ", "  ", "\t", " \t "] {
            let line = format!("{blanks}ssh-ed25519{blanks}AAAA{blanks}alice  on\ther laptop\r\n");
            assert_eq!(with_single_blanks(&line), plain, "{line:?}");
        }
        assert_eq!(with_single_blanks("ssh-ed25519\tAAAA"), "ssh-ed25519 AAAA");
        assert_eq!(with_single_blanks("ssh-ed25519 "), "ssh-ed25519");
        assert_eq!(with_single_blanks(" "), "");
    }
}
