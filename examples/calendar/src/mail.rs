//! Invitations in mail (RFC 6047): the requests in a message's calendar parts (RFC 5546).

use mail_parser::{Message, MessageParser, MimeHeaders};

use crate::event::{Event, EventError};
use crate::protocol::Request;
use crate::text::{Calendar, TextError};

/// Longest accepted message, in bytes.
pub const MAXIMUM_MESSAGE: usize = 16 << 20;
/// Most calendar parts of a message that are examined.
const MAXIMUM_PARTS: usize = 16;
/// Deepest nesting of attached messages.
const MAXIMUM_DEPTH: usize = 3;

/// Reasons to ignore a message or one of its parts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// The message lacks even headers.
    #[error("this is no mail message")]
    NoMessage,
    /// A part is not a calendar.
    #[error("a text/calendar part: {0}")]
    Text(#[from] TextError),
    /// A part's event is not understood.
    #[error("a text/calendar part: {0}")]
    Event(#[from] EventError),
    /// A part is not UTF-8 text.
    #[error("a text/calendar part is no text")]
    NoText,
    /// The message has too many parts.
    #[error("more than {MAXIMUM_PARTS} text/calendar parts")]
    TooManyParts,
}

/// The requests of a message's calendar parts to `calendar`, in order. REQUEST and PUBLISH add events,
/// CANCEL removes them or one of their occurrences; other methods (REPLY, COUNTER, ...) request
/// nothing. The same part often appears twice in a message, as alternative and as attachment; it
/// counts once.
///
/// # Errors
/// [`MailError`] for the first fault; the whole message is then ignored.
pub fn requests(message: &[u8], calendar: &str) -> Result<Vec<Request>, MailError> {
    let message = MessageParser::default()
        .parse(message)
        .ok_or(MailError::NoMessage)?;
    let mut texts = Vec::new();
    calendar_parts(&message, MAXIMUM_DEPTH, &mut texts)?;
    let mut requests = Vec::new();
    for text in texts {
        let part: Calendar = text.parse()?;
        match part.method().as_deref() {
            Some("REQUEST" | "PUBLISH") => requests.push(Request::Add {
                calendar: calendar.to_owned(),
                text,
            }),
            Some("CANCEL") => cancel(&part, calendar, &mut requests)?,
            _ => {}
        }
    }
    Ok(requests)
}

fn calendar_parts(
    message: &Message<'_>,
    depth: usize,
    texts: &mut Vec<String>,
) -> Result<(), MailError> {
    for part in &message.parts {
        if let Some(attached) = part.message().filter(|_| depth > 1) {
            calendar_parts(attached, depth - 1, texts)?;
        }
        if !part.is_content_type("text", "calendar") {
            continue;
        }
        let text = part.text_contents().ok_or(MailError::NoText)?.to_owned();
        if texts.contains(&text) {
            continue;
        }
        if texts.len() == MAXIMUM_PARTS {
            return Err(MailError::TooManyParts);
        }
        texts.push(text);
    }
    Ok(())
}

fn cancel(part: &Calendar, calendar: &str, requests: &mut Vec<Request>) -> Result<(), MailError> {
    for component in part
        .components()
        .filter(|component| component.kind == "VEVENT")
    {
        let event = Event::read(component)?;
        if event.recurrence.is_none() {
            requests.push(Request::Remove {
                uid: event.uid,
                calendar: Some(calendar.to_owned()),
                organizer: event.organizer,
                sequence: Some(event.sequence),
            });
            continue;
        }
        // One occurrence: it stays, to show that it is cancelled.
        let mut called_off = component.clone();
        called_off.set("STATUS", "CANCELLED");
        let mut text = part.clone();
        text.retain(|other| other.kind == "VTIMEZONE");
        text.push(called_off);
        requests.push(Request::Add {
            calendar: calendar.to_owned(),
            text: text.to_string(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(method: &str, properties: &str) -> String {
        format!(
            "BEGIN:VCALENDAR\r\nMETHOD:{method}\r\nBEGIN:VEVENT\r\nUID:1\r\nSEQUENCE:4\r\n\
             ORGANIZER;CN=A:MAILTO:A@example.org\r\nDTSTART:20260105T120000Z\r\n{properties}\
             END:VEVENT\r\nEND:VCALENDAR\r\n"
        )
    }

    fn message(parts: &[&str]) -> String {
        let mut message = "From: a@example.org\r\nSubject: x\r\nMIME-Version: 1.0\r\n\
            Content-Type: multipart/mixed; boundary=b\r\n\r\n\
            --b\r\nContent-Type: text/plain\r\n\r\nLunch?\r\n"
            .to_owned();
        for part in parts {
            message += "--b\r\nContent-Type: text/calendar; charset=utf-8; method=REQUEST\r\n\
                Content-Disposition: attachment; filename=invite.ics\r\n\r\n";
            message += part;
        }
        message + "--b--\r\n"
    }

    #[test]
    fn an_invitation_adds_once_though_it_stands_in_the_message_twice() -> Result<(), MailError> {
        let invitation = part("REQUEST", "");
        let found = requests(message(&[&invitation, &invitation]).as_bytes(), "work")?;
        assert!(
            matches!(&found[..], [Request::Add { calendar, text }]
                if calendar == "work" && text.contains("UID:1")),
            "{found:?}"
        );
        Ok(())
    }

    #[test]
    fn a_cancellation_removes_the_event_or_calls_off_one_occurrence() -> Result<(), MailError> {
        let whole = requests(message(&[&part("CANCEL", "")]).as_bytes(), "work")?;
        let removed = Request::Remove {
            uid: "1".to_owned(),
            calendar: Some("work".to_owned()),
            organizer: Some("a@example.org".to_owned()),
            sequence: Some(4),
        };
        assert_eq!(whole, [removed]);
        let one = part("CANCEL", "RECURRENCE-ID:20260105T120000Z\r\n");
        let one = requests(message(&[&one]).as_bytes(), "work")?;
        assert!(
            matches!(&one[..], [Request::Add { text, .. }] if text.contains("STATUS:CANCELLED")),
            "{one:?}"
        );
        Ok(())
    }

    #[test]
    fn other_mail_asks_nothing_and_malformed_parts_are_refused() {
        let asked = |message: &str| requests(message.as_bytes(), "work");
        assert_eq!(asked(&message(&[])), Ok(Vec::new()));
        assert_eq!(asked(&message(&[&part("REPLY", "")])), Ok(Vec::new()));
        assert_eq!(
            asked("From: a@example.org\r\n\r\nhello\r\n"),
            Ok(Vec::new())
        );
        assert!(matches!(
            asked(&message(&["nothing\r\n"])),
            Err(MailError::Text(_))
        ));
        let late = part("CANCEL", "").replace("DTSTART:2026", "DTSTART:x");
        assert!(matches!(
            asked(&message(&[&late])),
            Err(MailError::Event(_))
        ));
        let many: Vec<String> = (0..=MAXIMUM_PARTS)
            .map(|number| part("REQUEST", &format!("SUMMARY:{number}\r\n")))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(asked(&message(&many)), Err(MailError::TooManyParts));
    }
}
