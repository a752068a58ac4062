//! Strategies: any value of each kind that has an encoding.

use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use usher_proto::{
    Announcement, Authenticator, CallReply, CallRequest, Certified, ChainElement, ClientFrame,
    ConnectionInfo, ConnectionTuple, FromLender, HostName, HostPublicKey, Keep, KeeperReply,
    KeeperRequest, LocalReply, LocalRequest, MAX_GROUPS, MAX_PUBLIC_KEY_SIZE, MAX_SIGNATURE_SIZE,
    MAX_STATEMENT_SIZE, Opening, Principals, RecorderReply, RecorderRequest, Refusal, RelayReply,
    RelayRequest, ReservationId, ServerFrame, ServiceName, SessionEnd, SessionId, Statement,
    ToLender, TokenKey, TokenSlot, UserName,
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

/// Never IPv4-mapped: those are spelled as IPv4.
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

pub fn client_frame() -> impl Strategy<Value = ClientFrame> {
    let request = any::<u64>();
    prop_oneof![
        (
            request,
            any_authenticator(),
            prop::option::of(any_announcement())
        )
            .prop_map(|(request, authenticator, first)| ClientFrame::Open {
                request,
                authenticator,
                first
            }),
        (request, session(), any_announcement()).prop_map(|(request, session, announcement)| {
            ClientFrame::Announce {
                request,
                session,
                announcement,
            }
        }),
        (request, session(), tuple()).prop_map(|(request, session, connection)| {
            ClientFrame::Withdraw {
                request,
                session,
                connection,
            }
        }),
        (request, session()).prop_map(|(request, session)| ClientFrame::Close { request, session }),
        request.prop_map(|request| ClientFrame::Ping { request }),
        (request, session(), token_key()).prop_map(|(request, session, key)| {
            ClientFrame::Tokens {
                request,
                session,
                key,
            }
        }),
        (request, session(), any_announcement()).prop_map(|(request, session, announcement)| {
            ClientFrame::Reauthenticate {
                request,
                session,
                element: announcement.element,
            }
        }),
    ]
}

/// Server frames as they may be on the wire: reasons already disclosed.
pub fn server_frame() -> impl Strategy<Value = ServerFrame> {
    prop_oneof![
        (any::<u64>(), verdict()).prop_map(|(request, verdict)| ServerFrame::Reply {
            request,
            verdict: verdict.map_err(Refusal::disclosed),
        }),
        (session(), refusal()).prop_map(|(session, reason)| ServerFrame::SessionEnded {
            session,
            reason: reason.disclosed(),
        }),
        any::<u64>().prop_map(|request| ServerFrame::Pong { request }),
        (any::<u64>(), token_slot())
            .prop_map(|(request, slot)| ServerFrame::Slot { request, slot }),
        session().prop_map(|session| ServerFrame::Reauthenticate { session }),
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

pub fn keeper_request() -> impl Strategy<Value = KeeperRequest> {
    let request = any::<u64>();
    prop_oneof![
        (
            (request, host_name(), opening()),
            prop::option::of(any_announcement()),
            prop::collection::vec(any::<u8>(), 0..600),
        )
            .prop_map(
                |((request, host, opening), first, record)| KeeperRequest::Open {
                    request,
                    host,
                    opening: Box::new(opening),
                    first,
                    record,
                }
            ),
        (request, session(), host_name(), any_announcement()).prop_map(
            |(request, session, host, announcement)| KeeperRequest::Announce {
                request,
                session,
                host,
                announcement,
            }
        ),
        (request, session(), host_name(), tuple()).prop_map(
            |(request, session, host, connection)| KeeperRequest::Withdraw {
                request,
                session,
                host,
                connection,
            }
        ),
        (request, session(), host_name()).prop_map(|(request, session, host)| {
            KeeperRequest::Close {
                request,
                session,
                host,
            }
        }),
        (request, session(), host_name(), token_key()).prop_map(|(request, session, host, key)| {
            KeeperRequest::Tokens {
                request,
                session,
                host,
                key,
            }
        }),
        (request, session(), host_name(), any_announcement()).prop_map(
            |(request, session, host, announcement)| KeeperRequest::Reauthenticate {
                request,
                session,
                host,
                element: announcement.element,
            }
        ),
    ]
}

pub fn keeper_reply() -> impl Strategy<Value = KeeperReply> {
    prop_oneof![
        (any::<u64>(), verdict())
            .prop_map(|(request, verdict)| KeeperReply::Verdict { request, verdict }),
        (session(), host_name(), refusal()).prop_map(|(session, host, reason)| {
            KeeperReply::SessionEnded {
                session,
                host,
                reason,
            }
        }),
        (any::<u64>(), token_slot())
            .prop_map(|(request, slot)| KeeperReply::Slot { request, slot }),
        (session(), host_name())
            .prop_map(|(session, host)| KeeperReply::Reauthenticate { session, host }),
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
        any::<bool>().prop_map(|connected| LocalRequest::Done { connected }),
        Just(LocalRequest::Lend),
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
        server_host_key in host_key(),
        control in prop::collection::vec(socket_address(), 1..=8),
        frame in prop::collection::vec(any::<u8>(), 0..400),
    ) -> RelayRequest {
        RelayRequest::Forward { channel, server_host_key, control, frame }
    }
}

pub fn relay_reply() -> impl Strategy<Value = RelayReply> {
    prop_oneof![
        (host_name(), prop::collection::vec(any::<u8>(), 0..400))
            .prop_map(|(channel, frame)| RelayReply::Frame { channel, frame }),
        (host_name(), refusal())
            .prop_map(|(channel, refusal)| RelayReply::ChannelLost { channel, refusal }),
    ]
}

prop_compose! {
    pub fn recorder_request()(
        request in any::<u64>(),
        keep in prop_oneof![
            (opening(), prop::collection::vec(any::<u8>(), 0..600)).prop_map(|(opening, record)| {
                Keep::Authentication { opening: Box::new(opening), record }
            }),
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
