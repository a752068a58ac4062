//! Messages between programs and the daemons of their host.

use crate::common::{NOW, connection, statement, user_key};
use crate::inputs::{Inputs, common_to_all, variations};
use usher_proto::{
    CallReply, CallRequest, ConnectionInfo, FromLender, LocalReply, LocalRequest, ProgramEnd,
    Refusal, ReservationId, ToLender,
};

pub fn local() -> Inputs {
    let mut inputs = common_to_all(256);
    let connect = LocalRequest::Connect {
        host: "mailhost".parse().unwrap(),
        service: "imap".parse().unwrap(),
    };
    inputs.extend(variations(
        "connect",
        connect.encode(),
        &[
            ("version", 0, 2),
            ("type", 1, 77),
            ("on-behalf", 1, 2),
            ("with-ticket", 1, 4),
            ("owner", 1, 8),
            ("host-length-zero", 2, 0),
            ("host-length-huge", 2, 255),
            ("host-character", 3, b'/'),
        ],
    ));
    let done = LocalRequest::Done { connected: true };
    inputs.extend(variations(
        "done",
        done.encode(),
        &[("neither", 2, 2), ("failed", 2, 0)],
    ));
    let ready = LocalReply::Ready {
        server: connection().server,
    };
    inputs.extend(variations("ready", ready.encode(), &[("port-zero", 19, 0)]));
    let refused = LocalReply::Refused(Refusal::ClientPolicy);
    inputs.extend(variations(
        "refused",
        refused.encode(),
        &[("code", 2, 0xff)],
    ));
    inputs.extend(variations("lend", LocalRequest::Lend.encode(), &[]));
    let unreachable = LocalRequest::Unreachable.encode();
    inputs.extend(variations("unreachable", unreachable, &[]));
    inputs.extend(variations("finished", LocalReply::Finished.encode(), &[]));
    let ticket = LocalReply::Ticket {
        server: connection().server,
    };
    inputs.extend(variations(
        "ticket",
        ticket.encode(),
        &[("port-zero", 19, 0)],
    ));
    let how = LocalRequest::HowEnded {
        host: "mailhost".parse().unwrap(),
        service: "imap".parse().unwrap(),
        client: connection().client,
    };
    inputs.extend(variations(
        "how-ended",
        how.encode(),
        &[("service-length-huge", 11, 255)],
    ));
    for (name, end) in [
        (
            "ended",
            Some(ProgramEnd {
                by_signal: false,
                number: 89,
            }),
        ),
        ("ended-unknown", None),
    ] {
        let ended = LocalReply::Ended(end).encode();
        inputs.extend(variations(name, ended, &[]));
    }
    inputs
}

pub fn lending() -> Inputs {
    let mut inputs = common_to_all(4640);
    let sign = ToLender::Sign {
        public_key: user_key().public_key().to_bytes().unwrap(),
        statement: statement().encode(),
    };
    inputs.extend(variations(
        "sign",
        sign.encode(),
        &[("version", 0, 2), ("type", 1, 77), ("key-huge", 2, 0xff)],
    ));
    let refused = ToLender::Refused(Refusal::NoPrivateKey);
    inputs.extend(variations(
        "refused",
        refused.encode(),
        &[("code", 2, 0xff)],
    ));
    inputs.extend(variations("lent", ToLender::Lent.encode(), &[]));
    inputs.extend(variations("replaced", ToLender::Replaced.encode(), &[]));
    let signature = FromLender::Signature(vec![7; 83]);
    inputs.extend(variations("signature", signature.encode(), &[]));
    inputs.extend(variations(
        "not-signed",
        FromLender::NotSigned.encode(),
        &[],
    ));
    inputs
}

pub fn calls() -> Inputs {
    let mut inputs = common_to_all(640);
    let reservation = ReservationId::from_bytes([9; 16]);
    let attach = CallRequest::Attach { port: 143 };
    let changed = [("version", 0, 2), ("type", 1, 77), ("port-zero", 3, 0)];
    inputs.extend(variations("attach", attach.encode(), &changed));
    for (name, request) in [
        ("pre-accept", CallRequest::PreAccept),
        ("set-net-user", CallRequest::SetNetUser { reservation }),
        ("settled", CallRequest::Settled),
        ("accepted", CallRequest::Accepted),
        (
            "info",
            CallRequest::Info {
                connection: connection(),
            },
        ),
    ] {
        inputs.extend(variations(name, request.encode(), &[]));
    }
    let identity = CallReply::Identity {
        uid: 1000,
        gid: 1000,
        groups: vec![4, 1000],
    };
    inputs.extend(variations(
        "identity",
        identity.encode(),
        &[("groups-huge", 10, 0xff), ("groups-descending", 14, 0xff)],
    ));
    let root = CallReply::Identity {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    };
    inputs.push(("identity-root".to_owned(), root.encode()));
    let attached = CallReply::Attached {
        service: "imap".parse().unwrap(),
        process_per_user: true,
    };
    inputs.extend(variations(
        "attached",
        attached.encode(),
        &[("style", 2, 2)],
    ));
    let reserved = CallReply::Reserved {
        reservation,
        uid: 1000,
    };
    inputs.extend(variations("reserved", reserved.encode(), &[]));
    inputs.extend(variations("queue", CallReply::Queue.encode(), &[]));
    let connection = CallReply::Connection(ConnectionInfo {
        uid: 1000,
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        host: "laptop".parse().unwrap(),
        key_fingerprint: [3; 32],
        principals: "alice,ops".parse().unwrap(),
        opened: NOW,
        expires: NOW + 3600,
    });
    inputs.extend(variations(
        "connection",
        connection.encode(),
        &[("user-padding", 38, 1)],
    ));
    let refused = CallReply::Refused(Refusal::NotThisAccount);
    inputs.extend(variations("refused", refused.encode(), &[]));
    inputs
}
