//! The module `ubns` compiled for user space, compared with a model that is written from docs/mac.md.

mod cases;
#[path = "../shared/compiled.rs"]
mod compiled;
mod model;

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::OnceLock;

use cases::{Case, Element, Socket, case, services, words};
use model::{Model, refused_unless};
use proptest::prelude::*;
use usher_mac::ubns::{DestinationRange, MAX_DESTINATIONS, MAX_SERVICES, ServiceSettings};
use usher_mac::{EntryPoint, Error, ServiceMistake, Settings};

const EACCES: i32 = -libc::EACCES;
const EPERM: i32 = -libc::EPERM;

const SETUID: u64 = 1 << 7;
const SYS_ADMIN: u64 = 1 << 21;

/// The entry points of files, all with one rule.
const FILES: [EntryPoint; 11] = [
    EntryPoint::FileOpen,
    EntryPoint::InodeCreate,
    EntryPoint::InodeMkdir,
    EntryPoint::InodeSymlink,
    EntryPoint::InodeMknod,
    EntryPoint::InodeLink,
    EntryPoint::InodeUnlink,
    EntryPoint::InodeRmdir,
    EntryPoint::InodeRename,
    EntryPoint::InodeRenameTo,
    EntryPoint::InodeSetattr,
];

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled::compile("ubns/ubns.c"))
}

/// The module's answers at these entry points, each with the last element as the module left it.
fn asked(
    services: &[ServiceSettings],
    case: &Case,
    questions: &[(EntryPoint, Vec<u8>)],
) -> Vec<(i32, Vec<u8>)> {
    let mut input = Settings::Ubns(services.to_vec()).encode().unwrap();
    for (point, request) in questions {
        let Case { uid, euid, .. } = *case;
        let capabilities = case.capabilities;
        input.extend(words(&[*point as u32, 0]));
        input.extend(words(&[uid, euid, uid, euid, uid, uid, uid, uid]));
        input.extend(words(&[
            capabilities as u32,
            (capabilities >> 32) as u32,
            77,
            0,
        ]));
        let mut request = request.clone();
        request.resize(128, 0);
        input.extend(request);
        for element in [&case.own, &case.object, &case.last] {
            input.extend(element.encode());
        }
    }
    let output = compiled::run(program(), &input);
    let (answers, rest) = output.as_chunks::<124>();
    assert!(rest.is_empty());
    let answers = answers.iter().map(|answer| {
        let code = i32::from_ne_bytes(answer[..4].try_into().unwrap());
        (code, answer[4..].to_vec())
    });
    answers.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(900))]

    // Threat model: M22
    #[test]
    fn ubns_decides_as_its_model(services in services(), case in case()) {
        let by_name = services.iter().map(|service| (service.name.as_str(), service));
        let model = Model { services: by_name.collect(), case: &case };
        let address = case.socket.request();
        let call = words(&[case.socket.family, case.socket.kind, case.socket.protocol, 0, 0, 0]);
        let trace = words(&[0, 0, 0, 0, 1, case.trace_mode]);
        let uses = model.uses(&case.object);
        let mut expected = vec![
            (EntryPoint::SocketBind, address.clone(), model.binds()),
            (EntryPoint::SocketConnect, address.clone(), model.connects()),
            (EntryPoint::SocketSendmsg, address, model.sends()),
            (EntryPoint::SocketCreate, call.clone(), model.makes_socket()),
            (EntryPoint::SocketListen, call.clone(), refused_unless(uses)),
            (EntryPoint::SocketAccept, call, refused_unless(uses)),
            (EntryPoint::PtraceAccessCheck, trace.clone(), model.traces(false)),
            (EntryPoint::PtraceTraceme, trace, model.traces(true)),
            (EntryPoint::RelabelProcess, Vec::new(), model.becomes_service()),
            (EntryPoint::RelabelFile, Vec::new(), if model.has(SYS_ADMIN) { 0 } else { EPERM }),
        ];
        let in_directory = uses && model.uses(&case.last);
        expected.extend(FILES.map(|point| (point, Vec::new(), refused_unless(in_directory))));
        let questions: Vec<_> = expected.iter().map(|(point, request, _)| (*point, request.clone())).collect();
        let answers = asked(&services, &case, &questions);
        for ((point, _, wanted), (answer, _)) in expected.iter().zip(answers) {
            prop_assert_eq!(answer, *wanted, "{}", point);
        }
        let decisions = [(EntryPoint::NewProgram, Vec::new()), (EntryPoint::NewFile, Vec::new())];
        let decided = asked(&services, &case, &decisions);
        prop_assert_eq!(&decided[0], &(0, model.of_program().encode()));
        match model.of_file() {
            None => prop_assert_eq!(decided[1].0, EACCES),
            Some(element) => prop_assert_eq!(&decided[1], &(0, element.encode())),
        }
    }
}

#[test]
fn the_address_of_zeros_is_no_destination() {
    let everything = |first: &str, last: &str| DestinationRange {
        first: first.parse().unwrap(),
        last: last.parse().unwrap(),
        ports: (0, u16::MAX),
    };
    let service = ServiceSettings {
        name: "imap".into(),
        port: 143,
        account: None,
        connect: Some(vec![
            everything("0.0.0.0", "255.255.255.255"),
            everything("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ]),
    };
    let connects = |address: &str| {
        let case = Case {
            uid: 1000,
            euid: 1000,
            capabilities: 0,
            own: Element::Name("imap".into()),
            object: Element::Nothing,
            last: Element::Nothing,
            socket: Socket {
                family: 10,
                kind: 1,
                protocol: 6,
                address: address.parse().unwrap(),
                port: 25,
                named: 2,
            },
            trace_mode: 0,
        };
        let question = (EntryPoint::SocketConnect, case.socket.request());
        asked(std::slice::from_ref(&service), &case, &[question])[0].0
    };
    for refused in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
        assert_eq!(connects(refused), EACCES, "{refused}");
    }
    for permitted in ["0.0.0.1", "::1", "::ffff:0.0.0.1"] {
        assert_eq!(connects(permitted), 0, "{permitted}");
    }
}

#[test]
fn services_beyond_the_limits_are_refused_by_name() {
    let service = |name: String| ServiceSettings {
        name,
        port: 143,
        account: None,
        connect: None,
    };
    let to = DestinationRange {
        first: IpAddr::from([192, 0, 2, 1]),
        last: IpAddr::from([192, 0, 2, 9]),
        ports: (1, 2),
    };
    let encode = |services: Vec<ServiceSettings>| Settings::Ubns(services).encode();
    let many = |count: usize| {
        (0..count)
            .map(|number| service(number.to_string()))
            .collect()
    };
    encode(many(MAX_SERVICES)).unwrap();
    let refused = encode(many(MAX_SERVICES + 1)).unwrap_err();
    assert!(matches!(refused, Error::TooManyServices(513)), "{refused}");
    let connects = |count: usize| ServiceSettings {
        connect: Some(vec![to; count]),
        ..service("a".into())
    };
    let half = MAX_DESTINATIONS / 2;
    encode(vec![connects(half), connects(half)]).unwrap();
    let refused = encode(vec![connects(half), connects(half + 1)]).unwrap_err();
    assert!(
        matches!(refused, Error::TooManyDestinations(1025)),
        "{refused}"
    );
    let mistake = |wrong: ServiceSettings| match encode(vec![service("b".into()), wrong]) {
        Err(Error::Service { what, .. }) => Some(what),
        other => other.map(|_| None).unwrap(),
    };
    assert_eq!(mistake(service("x".repeat(63))), None);
    assert_eq!(mistake(service("x".repeat(64))), Some(ServiceMistake::Name));
    assert_eq!(mistake(service(String::new())), Some(ServiceMistake::Name));
    let of = |account| ServiceSettings {
        account,
        ..service("a".into())
    };
    assert_eq!(mistake(of(Some(1))), None);
    assert_eq!(mistake(of(Some(0))), Some(ServiceMistake::Root));
    let without = ServiceSettings {
        port: 0,
        ..service("a".into())
    };
    assert_eq!(mistake(without), Some(ServiceMistake::Port));
    for wrong in [
        DestinationRange {
            ports: (2, 1),
            ..to
        },
        DestinationRange {
            last: IpAddr::from([192, 0, 2, 0]),
            ..to
        },
        DestinationRange {
            last: Ipv6Addr::LOCALHOST.into(),
            ..to
        },
    ] {
        let service = ServiceSettings {
            connect: Some(vec![wrong]),
            ..service("a".into())
        };
        assert_eq!(mistake(service), Some(ServiceMistake::Destination));
    }
}
