//! Texts from bytes.

use std::sync::Arc;

use crate::faults::SyntaxMistake;
use crate::mistake::Diagnostic;
use crate::source::{Location, Source, Span};

impl Source {
    /// The text of these bytes.
    ///
    /// # Errors
    ///
    /// The mistake of the first byte that is not of UTF-8.
    pub fn from_utf8(name: String, bytes: Vec<u8>) -> Result<Self, Box<Diagnostic>> {
        let error = match String::from_utf8(bytes) {
            Ok(text) => return Ok(Self { name, text }),
            Err(error) => error,
        };
        let (bytes, error) = (error.as_bytes(), error.utf8_error());
        let offset = error.valid_up_to();
        let length = error.error_len().unwrap_or(bytes.len() - offset);
        let readable = Self {
            name,
            text: String::from_utf8_lossy(&bytes[..offset]).into_owned(),
        };
        let location = Location {
            source: 0,
            span: Span { offset, length },
        };
        let byte = bytes[offset];
        let mistake = Diagnostic::of(
            &[readable],
            location,
            Arc::new(SyntaxMistake::NotUtf8 { byte }),
        );
        Err(mistake.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_not_utf_8_is_reported_with_its_place() {
        let read = |bytes: &[u8]| Source::from_utf8("a.policy".to_owned(), bytes.to_owned());
        assert_eq!(read("é\n".as_bytes()).unwrap().text, "é\n");
        for (bytes, told) in [
            (&b"\xff"[..], "a.policy:1:1: the byte 0xff "),
            (
                b"users u {\n  # \xc3\xa9t\xe9 {",
                "a.policy:2:7: the byte 0xe9 ",
            ),
            // A character that the end of the text cuts off.
            (b"# \xe2\x82", "a.policy:1:3: the byte 0xe2 "),
        ] {
            let error = read(bytes).unwrap_err();
            assert!(error.to_string().starts_with(told), "{error}");
            assert!(error.span.end() <= bytes.len());
        }
    }
}
