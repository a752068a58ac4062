//! Bytes that are no frame.

use crate::attack::{Attack, Result, listen, still_works};
use usher_lab::hostile::id_of;
use usher_proto::{ClientBody, ClientFrame, MAX_FRAME, Refusal, ServerFrame, SessionRequest};

/// A frame by hand.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(1 + 8 + body.len()).unwrap();
    let mut out = length.to_be_bytes().to_vec();
    out.push(kind);
    out.extend_from_slice(&77_u64.to_be_bytes());
    out.extend_from_slice(body);
    out
}

// Threat model: A34
#[test]
fn a_frame_that_is_none_closes_its_channel_and_nothing_else() -> Result {
    let attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    // alice works all the time, on a connection and a session of her own.
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let mut working = attack.granted(&mut channel, &mut asked, &key)?;
    let session = id_of(&asked.sign(&key)?);

    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    let right = ClientFrame {
        request: 77,
        body: ClientBody::Session(session, SessionRequest::Announce(announcement)),
    }
    .encode();
    let mut statement_too_long = 600_u32.to_be_bytes().to_vec();
    statement_too_long.extend_from_slice(&[0; 700]);
    let mut mixed_families = right.clone();
    // The client's address of the 4-tuple becomes IPv6, the server's stays IPv4.
    let tuple = mixed_families.len() - 36;
    mixed_families[tuple..tuple + 16].copy_from_slice(&[0x20; 16]);
    let mut no_port = right.clone();
    no_port[tuple + 32..tuple + 34].copy_from_slice(&[0, 0]);
    let oversized = u32::try_from(MAX_FRAME + 1).unwrap().to_be_bytes();

    let cases: Vec<(&str, Vec<u8>, Refusal)> = vec![
        ("length 0", vec![0; 4], Refusal::Truncated),
        ("length 8", vec![0, 0, 0, 8], Refusal::Truncated),
        (
            "length over the limit",
            oversized.into(),
            Refusal::Oversized,
        ),
        ("the greatest length", vec![0xff; 4], Refusal::Oversized),
        (
            "an announcement cut short",
            frame(2, &right[13..60]),
            Refusal::Truncated,
        ),
        (
            "an authenticator of nothing",
            frame(1, &[]),
            Refusal::Truncated,
        ),
        (
            "a statement over its limit",
            frame(1, &statement_too_long),
            Refusal::Oversized,
        ),
        ("an unknown type", frame(99, &[]), Refusal::Malformed),
        ("a server's frame", frame(131, &[]), Refusal::Malformed),
        ("bytes after the end", frame(5, &[0]), Refusal::Malformed),
        ("families mixed", mixed_families, Refusal::Malformed),
        ("a port of zero", no_port, Refusal::Malformed),
        (
            "a greeting of HTTP",
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            Refusal::Oversized,
        ),
    ];
    for (what, bytes, reason) in cases {
        let heard = listen(&attack.mail.verifier)?;
        let mut channel = attack.channel()?;
        channel.send(&bytes)?;
        assert_eq!(channel.receive()?, None, "{what}: the channel stays open");
        heard.reason(&attack.mail.verifier, reason, what)?;
    }
    // Half a frame and the end.
    let mut channel = attack.channel()?;
    channel.send(&right[..20])?;
    drop(channel);

    // The twin, whole, one byte at a time.
    let mut channel = attack.channel()?;
    for byte in &right {
        channel.send(&[*byte])?;
    }
    let granted = ServerFrame::Answer {
        request: 77,
        verdict: Ok(None),
    };
    assert_eq!(channel.receive()?, Some(granted));
    attack.served(port, "alice")?;
    still_works(&mut working)
}
