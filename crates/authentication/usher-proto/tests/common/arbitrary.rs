//! Strategies: any value of each kind that has an encoding.

use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use usher_base::{ConnectionTuple, HostName, ServiceName, UserName};
use usher_proto::{
    Announcement, Authentication, Authenticator, CallReply, CallRequest, Certified, ChainElement,
    ClientBody, ClientFrame, ConnectionInfo, FromLender, HostPublicKey, Keep, KeeperBody,
    KeeperReply, KeeperRequest, LocalReply, LocalRequest, MAX_GROUPS, MAX_PUBLIC_KEY_SIZE,
    MAX_SIGNATURE_SIZE, MAX_STATEMENT_SIZE, Notice, Opening, Principals, ProgramEnd, RecorderReply,
    RecorderRequest, Refusal, RelayReply, RelayRequest, ReservationId, ServerFrame, SessionEnd,
    SessionId, SessionRequest, Statement, ToLender, TokenKey, TokenSlot, Verdict,
};

prop_compose! {
    pub fn user_name()(text in "[a-z_][a-z0-9_.-]{0,31}") -> UserName { text.parse().unwrap() }
}

prop_compose! {
    pub fn service_name()(text in "[A-Za-z0-9][A-Za-z0-9_.-]{0,31}") -> ServiceName {
        text.parse().unwrap()
    }
}

prop_compose! {
    pub fn host_name()(text in "[A-Za-z0-9][A-Za-z0-9.-]{0,62}") -> HostName {
        text.parse().unwrap()
    }
}

prop_compose! {
    pub fn host_key()(bytes in any::<[u8; 32]>()) -> HostPublicKey {
        HostPublicKey::from_bytes(bytes)
    }
}

fn ipv4() -> impl Strategy<Value = IpAddr> {
    (1..=u32::MAX).prop_map(|bits| IpAddr::V4(Ipv4Addr::from(bits)))
}

/// Addresses that are never IPv4-mapped: mapped ones are spelled as IPv4.
fn ipv6() -> impl Strategy<Value = IpAddr> {
    (1..=u128::MAX)
        .prop_map(Ipv6Addr::from)
        .prop_filter("mapped", |address| address.to_ipv4_mapped().is_none())
        .prop_map(IpAddr::V6)
}

pub fn socket_address() -> impl Strategy<Value = SocketAddr> {
    (prop_oneof![ipv4(), ipv6()], 1..=u16::MAX).prop_map(SocketAddr::from)
}

pub fn tuple() -> impl Strategy<Value = ConnectionTuple> {
    let addresses = prop_oneof![(ipv4(), ipv4()).boxed(), (ipv6(), ipv6()).boxed()];
    (addresses, 1..=u16::MAX, 1..=u16::MAX).prop_map(|((client, server), from, to)| {
        ConnectionTuple::new((client, from).into(), (server, to).into()).unwrap()
    })
}

prop_compose! {
    pub fn any_announcement()(
        position in any::<u32>(),
        value in any::<[u8; 16]>(),
        connection in tuple(),
    ) -> Announcement {
        Announcement { element: ChainElement { position, value }, connection }
    }
}

prop_compose! {
    pub fn any_statement()(
        names in (user_name(), service_name()),
        keys in (host_key(), host_key()),
        server in socket_address(),
        times in any::<(u64, u64)>(),
        nonce in any::<[u8; 16]>(),
        chain in any::<([u8; 16], u32, [u8; 16], [u8; 11])>(),
    ) -> Statement {
        Statement {
            user: names.0,
            service: names.1,
            client_host_key: keys.0,
            server_host_key: keys.1,
            server,
            issued: times.0,
            expires: times.1,
            nonce,
            chain_anchor: chain.0,
            token_anchor: chain.3,
            chain_length: chain.1,
            chain_salt: chain.2,
        }
    }
}

pub fn session() -> impl Strategy<Value = SessionId> {
    any::<[u8; 16]>().prop_map(SessionId::from_bytes)
}

pub fn refusal() -> impl Strategy<Value = Refusal> {
    proptest::sample::select(Refusal::ALL)
}

pub fn verdict() -> impl Strategy<Value = Result<(), Refusal>> {
    prop_oneof![Just(Ok(())), refusal().prop_map(Err)]
}

pub fn token_key() -> impl Strategy<Value = TokenKey> {
    any::<[u8; 16]>().prop_map(TokenKey::from_bytes)
}

pub fn token_slot() -> impl Strategy<Value = TokenSlot> {
    (0..TokenSlot::COUNT).prop_map(|number| TokenSlot::new(number).unwrap())
}

fn any_authenticator() -> impl Strategy<Value = Authenticator> {
    (
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(any::<u8>(), 0..400),
    )
        .prop_map(|(statement, signature)| Authenticator {
            statement,
            signature,
        })
}

pub fn session_request() -> impl Strategy<Value = SessionRequest> {
    prop_oneof![
        any_announcement().prop_map(SessionRequest::Announce),
        tuple().prop_map(SessionRequest::Withdraw),
        Just(SessionRequest::Close),
        token_key().prop_map(SessionRequest::Tokens),
        any_announcement().prop_map(|first| SessionRequest::Reauthenticate(first.element)),
    ]
}

pub fn client_frame() -> impl Strategy<Value = ClientFrame> {
    let body = prop_oneof![
        (any_authenticator(), prop::option::of(any_announcement())).prop_map(
            |(authenticator, first)| ClientBody::Open {
                authenticator,
                first
            }
        ),
        (session(), session_request())
            .prop_map(|(session, asked)| ClientBody::Session(session, asked)),
        Just(ClientBody::Ping),
    ];
    (any::<u64>(), body).prop_map(|(request, body)| ClientFrame { request, body })
}

fn answer() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        verdict().prop_map(|verdict| verdict.map(|()| None)),
        token_slot().prop_map(|slot| Ok(Some(slot))),
    ]
}

fn program_end() -> impl Strategy<Value = ProgramEnd> {
    any::<(bool, u8)>().prop_map(|(by_signal, number)| ProgramEnd { by_signal, number })
}

fn notice() -> impl Strategy<Value = Notice> {
    prop_oneof![
        (session(), refusal())
            .prop_map(|(session, reason)| Notice::SessionEnded { session, reason }),
        session().prop_map(|session| Notice::Reauthenticate { session }),
        (session(), socket_address(), program_end()).prop_map(|(session, client, end)| {
            Notice::ProgramEnded {
                session,
                client,
                end,
            }
        }),
    ]
}

/// Server frames as they may be on the wire: reasons already disclosed.
pub fn server_frame() -> impl Strategy<Value = ServerFrame> {
    prop_oneof![
        (any::<u64>(), answer()).prop_map(|(request, verdict)| ServerFrame::Answer {
            request,
            verdict: verdict.map_err(Refusal::disclosed),
        }),
        notice().prop_map(|mut notice| {
            if let Notice::SessionEnded { reason, .. } = &mut notice {
                *reason = reason.disclosed();
            }
            ServerFrame::Notice(notice)
        }),
        any::<u64>().prop_map(|request| ServerFrame::Pong { request }),
    ]
}

pub fn principals() -> impl Strategy<Value = Principals> {
    prop::collection::vec("[a-zA-Z@.ä-]{1,40}", 0..8)
        .prop_map(|names| Principals::new(names.iter().map(String::as_str)).unwrap())
}

fn certified() -> impl Strategy<Value = Certified> {
    let fixed = any::<([u8; 32], [u8; 20], [u8; 20], u64, [u8; 32], u64)>();
    (fixed, principals()).prop_map(|(fixed, principals)| Certified {
        authority: fixed.0,
        authority_sha1: fixed.1,
        key_sha1: fixed.2,
        serial: fixed.3,
        key_id: fixed.4,
        valid_before: fixed.5,
        principals,
    })
}

fn opening() -> impl Strategy<Value = Opening> {
    (
        any_statement(),
        any::<[u8; 32]>(),
        prop::option::of(certified()),
    )
        .prop_map(|(statement, key_fingerprint, certificate)| Opening {
            statement,
            key_fingerprint,
            certificate,
        })
}

fn authentication() -> impl Strategy<Value = Box<Authentication>> {
    (opening(), prop::collection::vec(any::<u8>(), 0..600))
        .prop_map(|(opening, record)| Box::new(Authentication { opening, record }))
}

pub fn keeper_request() -> impl Strategy<Value = KeeperRequest> {
    let body = prop_oneof![
        (authentication(), prop::option::of(any_announcement())).prop_map(
            |(authentication, first)| KeeperBody::Open {
                authentication,
                first,
            }
        ),
        (session(), session_request())
            .prop_map(|(session, asked)| KeeperBody::Session(session, asked)),
    ];
    (any::<u64>(), host_name(), body).prop_map(|(request, host, body)| KeeperRequest {
        request,
        host,
        body,
    })
}

pub fn keeper_reply() -> impl Strategy<Value = KeeperReply> {
    prop_oneof![
        (any::<u64>(), answer())
            .prop_map(|(request, verdict)| KeeperReply::Answer { request, verdict }),
        (host_name(), notice()).prop_map(|(host, notice)| KeeperReply::Notice { host, notice }),
    ]
}

pub fn local_request() -> impl Strategy<Value = LocalRequest> {
    prop_oneof![
        (host_name(), service_name())
            .prop_map(|(host, service)| LocalRequest::Connect { host, service }),
        (host_name(), service_name())
            .prop_map(|(host, service)| LocalRequest::ConnectOnBehalf { host, service }),
        (host_name(), service_name())
            .prop_map(|(host, service)| LocalRequest::ConnectWithTicket { host, service }),
        (host_name(), service_name())
            .prop_map(|(host, service)| LocalRequest::OwnerAtProxy { host, service }),
        any::<bool>().prop_map(|connected| LocalRequest::Done { connected }),
        (host_name(), service_name(), socket_address()).prop_map(|(host, service, client)| {
            LocalRequest::HowEnded {
                host,
                service,
                client,
            }
        }),
        Just(LocalRequest::Lend),
        Just(LocalRequest::Unreachable),
    ]
}

pub fn to_lender() -> impl Strategy<Value = ToLender> {
    let bytes = |limit| prop::collection::vec(any::<u8>(), 0..=limit);
    prop_oneof![
        Just(ToLender::Lent),
        (bytes(MAX_PUBLIC_KEY_SIZE), bytes(MAX_STATEMENT_SIZE)).prop_map(
            |(public_key, statement)| ToLender::Sign {
                public_key,
                statement,
            }
        ),
        Just(ToLender::Replaced),
        refusal().prop_map(ToLender::Refused),
    ]
}

pub fn from_lender() -> impl Strategy<Value = FromLender> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..=MAX_SIGNATURE_SIZE).prop_map(FromLender::Signature),
        Just(FromLender::NotSigned),
    ]
}

pub fn local_reply() -> impl Strategy<Value = LocalReply> {
    prop_oneof![
        socket_address().prop_map(|server| LocalReply::Ready { server }),
        refusal().prop_map(LocalReply::Refused),
        Just(LocalReply::Finished),
        socket_address().prop_map(|server| LocalReply::Ticket { server }),
        any::<u32>().prop_map(|uid| LocalReply::Owner { uid }),
        prop::option::of(program_end()).prop_map(LocalReply::Ended),
    ]
}

fn reservation() -> impl Strategy<Value = ReservationId> {
    any::<[u8; 16]>().prop_map(ReservationId::from_bytes)
}

fn user_id() -> impl Strategy<Value = u32> {
    1..u32::MAX
}

pub fn call_request() -> impl Strategy<Value = CallRequest> {
    prop_oneof![
        (1_u16..).prop_map(|port| CallRequest::Attach { port }),
        Just(CallRequest::PreAccept),
        reservation().prop_map(|reservation| CallRequest::SetNetUser { reservation }),
        Just(CallRequest::Settled),
        Just(CallRequest::Accepted),
        tuple().prop_map(|connection| CallRequest::Info { connection }),
    ]
}

pub fn call_reply() -> impl Strategy<Value = CallReply> {
    let groups = prop::collection::btree_set(any::<u32>(), 0..=MAX_GROUPS);
    prop_oneof![
        (service_name(), any::<bool>()).prop_map(|(service, process_per_user)| {
            CallReply::Attached {
                service,
                process_per_user,
            }
        }),
        (reservation(), user_id())
            .prop_map(|(reservation, uid)| CallReply::Reserved { reservation, uid }),
        (user_id(), any::<u32>(), groups).prop_map(|(uid, gid, groups)| CallReply::Identity {
            uid,
            gid,
            groups: groups.into_iter().collect(),
        }),
        Just(CallReply::Queue),
        (
            (user_id(), user_name(), service_name(), host_name()),
            any::<([u8; 32], u64, u64)>(),
            principals(),
        )
            .prop_map(
                |((uid, user, service, host), (key_fingerprint, opened, expires), principals)| {
                    CallReply::Connection(ConnectionInfo {
                        uid,
                        user,
                        service,
                        host,
                        key_fingerprint,
                        principals,
                        opened,
                        expires,
                    })
                }
            ),
        refusal().prop_map(CallReply::Refused),
    ]
}

prop_compose! {
    pub fn relay_request()(
        channel in host_name(),
        server_host_keys in prop::collection::vec(host_key(), 1..=2),
        control in prop::collection::vec(socket_address(), 1..=8),
        frame in prop::collection::vec(any::<u8>(), 0..400),
    ) -> RelayRequest {
        RelayRequest::Forward { channel, server_host_keys, control, frame }
    }
}

pub fn relay_reply() -> impl Strategy<Value = RelayReply> {
    prop_oneof![
        (host_name(), prop::collection::vec(any::<u8>(), 0..400))
            .prop_map(|(channel, frame)| RelayReply::Frame { channel, frame }),
        (host_name(), refusal())
            .prop_map(|(channel, refusal)| RelayReply::ChannelLost { channel, refusal }),
        (host_name(), socket_address(), host_key()).prop_map(|(channel, address, key)| {
            RelayReply::ChannelOpen {
                channel,
                address,
                key,
            }
        }),
    ]
}

prop_compose! {
    pub fn recorder_request()(
        request in any::<u64>(),
        keep in prop_oneof![
            authentication().prop_map(Keep::Authentication),
            session_end().prop_map(Keep::End),
        ],
    ) -> RecorderRequest {
        RecorderRequest { request, keep }
    }
}

prop_compose! {
    pub fn session_end()(
        session in session(),
        user in user_name(),
        service in service_name(),
        ended in any::<u64>(),
        reason in refusal(),
    ) -> SessionEnd {
        SessionEnd { session, user, service, ended, reason }
    }
}

prop_compose! {
    pub fn recorder_reply()(
        request in any::<u64>(),
        verdict in prop_oneof![Just(Ok(())), refusal().prop_map(Err)],
    ) -> RecorderReply {
        RecorderReply { request, verdict }
    }
}
