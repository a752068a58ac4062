//! The control channel's frames, and how they are relayed to it.

use crate::common::{SESSION, client_frames, connection, server_key};
use crate::inputs::{Inputs, common_to_all, variations};
use usher_proto::{Notice, ProgramEnd, Refusal, RelayReply, RelayRequest, ServerFrame, TokenSlot};

pub fn client() -> Inputs {
    let mut inputs = common_to_all(8192);
    for (name, frame) in client_frames() {
        inputs.extend(variations(
            name,
            frame.encode()[4..].to_vec(),
            &[("type", 0, 129)],
        ));
        // The frame as a stream, because the target reads its input that way, too.
        inputs.push((format!("{name}-with-its-length"), frame.encode()));
    }
    let open = client_frames().remove(0).1.encode()[4..].to_vec();
    inputs.extend(variations(
        "open",
        open,
        &[
            ("statement-length", 11, 0xff),
            ("statement-length-huge", 9, 0xff),
        ],
    ));
    let withdraw = client_frames().remove(2).1.encode()[4..].to_vec();
    inputs.extend(variations(
        "withdraw",
        withdraw,
        &[("mixed-families", 25, 0x20), ("server-port-zero", 60, 0)],
    ));
    inputs
}

pub fn server() -> Inputs {
    let mut inputs = common_to_all(8192);
    let reply = |verdict| {
        ServerFrame::Answer {
            request: 7,
            verdict,
        }
        .encode()[4..]
            .to_vec()
    };
    inputs.extend(variations("granted", reply(Ok(None)), &[("type", 0, 1)]));
    inputs.extend(variations(
        "refused",
        reply(Err(Refusal::NotAuthenticated)),
        &[
            ("code-not-given-out", 9, 0xff),
            ("code-never-disclosed", 10, 67),
        ],
    ));
    let ended = ServerFrame::Notice(Notice::SessionEnded {
        session: SESSION,
        reason: Refusal::DisabledUser,
    });
    inputs.extend(variations(
        "session-ended",
        ended.encode()[4..].to_vec(),
        &[("with-request", 8, 1), ("without-reason", 26, 0)],
    ));
    let pong = ServerFrame::Pong { request: 9 };
    inputs.extend(variations("pong", pong.encode()[4..].to_vec(), &[]));
    let slot = ServerFrame::Answer {
        request: 9,
        verdict: Ok(TokenSlot::new(0x00ab_cdef)),
    };
    inputs.extend(variations(
        "slot",
        slot.encode()[4..].to_vec(),
        &[("beyond-24-bits", 9, 1)],
    ));
    let reauthenticate = ServerFrame::Notice(Notice::Reauthenticate { session: SESSION });
    inputs.extend(variations(
        "reauthenticate",
        reauthenticate.encode()[4..].to_vec(),
        &[("with-request", 8, 1)],
    ));
    let ended = ServerFrame::Notice(Notice::ProgramEnded {
        session: SESSION,
        client: connection().client,
        end: ProgramEnd {
            by_signal: false,
            number: 89,
        },
    });
    inputs.extend(variations(
        "program-ended",
        ended.encode()[4..].to_vec(),
        &[("with-request", 8, 1), ("neither", 43, 2)],
    ));
    inputs
}

pub fn relay() -> Inputs {
    let mut inputs = common_to_all(9000);
    let forward = RelayRequest::Forward {
        channel: "mailhost".parse().unwrap(),
        server_host_keys: vec![server_key()],
        control: vec![connection().server, "[2001:db8::2]:3440".parse().unwrap()],
        frame: client_frames().remove(0).1.encode(),
    };
    // Offsets: version, type, 1 + 8 channel, count and 32 key, then the count.
    inputs.extend(variations(
        "forward",
        forward.encode(),
        &[
            ("version", 0, 3),
            ("type", 1, 77),
            ("no-key", 11, 0),
            ("three-keys", 11, 3),
            ("no-address", 44, 0),
            ("nine-addresses", 44, 9),
            ("channel-character", 3, b'/'),
        ],
    ));
    let channel = || "mailhost".parse().unwrap();
    let frame = ServerFrame::Pong { request: 1 }.encode()[4..].to_vec();
    let frame = RelayReply::Frame {
        channel: channel(),
        frame,
    };
    inputs.extend(variations(
        "frame",
        frame.encode(),
        &[("length-huge", 11, 0xff)],
    ));
    let lost = RelayReply::ChannelLost {
        channel: channel(),
        refusal: Refusal::VerifierUnavailable,
    };
    inputs.extend(variations(
        "channel-lost",
        lost.encode(),
        &[("code", 11, 0xff)],
    ));
    let open = RelayReply::ChannelOpen {
        channel: channel(),
        address: ([10, 77, 0, 2], 3440).into(),
        key: server_key(),
    };
    inputs.extend(variations("channel-open", open.encode(), &[]));
    inputs
}
